"""Changed lines keep to the layout of the project: its width, its formatter, its quotation marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.migrate.migration import migrate


def migrated(folder: Path, text: str) -> str:
    (folder / "a.py").write_text(f"import torch\n{text}")
    return migrate(folder).changes[0].after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "if not weights.is_cuda and weights.dtype == torch.float16:\n    'this'\n",
            "if (\n    weights.device.type not in ('cuda', 'npu')\n    and weights.dtype == torch.float16\n):\n",
        ),
        (
            "small = 'x' in y or weights.is_cuda and not f(weights)\n",
            "small = (\n    'x' in y\n    or weights.device.type in ('cuda', 'npu')\n    and not f(weights)\n)\n",
        ),
        (
            "x = y = weights.is_cuda and g(weights) or weights.is_sparse\n",
            'x = y = (\n    weights.device.type in ("cuda", "npu")\n    and g(weights)\n    or weights.is_sparse\n)\n',
        ),
        ("if weights.is_cuda and g(weights) and weights.is_sparse: 'x'\n", "if weights.device.type in ("),
    ],
)
def test_conditions_that_became_too_long_are_broken_at_their_operators(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "setup.cfg").write_text("[flake8]\nmax-line-length = 65\n")
    assert after in migrated(tmp_path, before)


def test_what_fits_on_one_line_again_is_joined_where_black_would(tmp_path: Path) -> None:
    call = "    tokens = torch.tensor(\n        words, dtype=torch.int64, device=torch.cuda.current_device()\n    )\n"
    kept = call.replace("words", "words_of_the_line").replace("()\n", "(),\n")
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 70\n")
    after = migrated(tmp_path, f"def f(words):\n{call}{kept}")
    assert "    tokens = torch.tensor(words, dtype=torch.int64, device=DEVICE)\n" in after
    assert after.endswith("        words_of_the_line, dtype=torch.int64, device=DEVICE,\n    )\n")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('a = b[\'c\'].is_cuda\nb = "c", "d"\n', "b['c'].device.type in ('cuda', 'npu')"),
        ("a = b.is_cuda  # isn't\nc = \"d\"  # it's\n", 'b.device.type in ("cuda", "npu")'),
        ('"""It is."""\na = b.is_cuda\nc = \'d\'\n', "b.device.type in ('cuda', 'npu')"),
    ],
)
def test_strings_get_the_quotation_marks_of_those_around_them(tmp_path: Path, text: str, after: str) -> None:
    assert after in migrated(tmp_path, text)


BLACK = "repos:\n- repo: black\n  hooks:\n  - id: black\n    args: ['--line-length=76', '--target-version=py37']\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (  # fits in 76 columns, though no line of the file is as long
            "model = Net(in_dim, hidden_dim, num_layers, num_heads, half_wide).cuda()\n",
            "model = Net(in_dim, hidden_dim, num_layers, num_heads, half_wide).to(DEVICE)\n",
        ),
        (
            "data = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in kv}\n",
            "data = {\n    k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in kv\n}\n",
        ),
        (
            "grads = [zeros_like_the_gradient_of(weights).cuda() for _ in range(world)]\n",
            "grads = [\n    zeros_like_the_gradient_of(weights).to(DEVICE) for _ in range(world)\n]\n",
        ),
        (
            "sent = (\n    parts_of_the_tensor[:, begin:end_of_part, :].contiguous().half().cuda()\n)\n",
            "sent = (\n    parts_of_the_tensor[:, begin:end_of_part, :]\n"
            "    .contiguous()\n    .half()\n    .to(DEVICE)\n)\n",
        ),
        (
            "ids = tokenizer(prompt_of_user, return_tensors=1).words.to(\n    torch.cuda.current_device()\n)\n",
            "ids = tokenizer(prompt_of_user, return_tensors=1).words.to(DEVICE)\n",
        ),
        (
            "x = torch.ones(\n    number, device=torch.cuda.current_device(), dtype=torch.float16\n)\n",
            "x = torch.ones(number, device=DEVICE, dtype=torch.float16)\n",
        ),
        (
            "f(\n    torch.tensor(1, device=torch.cuda.current_device()),\n    second,\n)\n",
            "f(\n    torch.tensor(1, device=DEVICE),\n    second,\n)\n",
        ),
        (  # of which more fits on the first line
            'indices = torch.tensor(\n    [rank, 2 * size], device="cpu", pin_memory=True\n).cuda(non_blocking=True)\n',
            'indices = torch.tensor([rank, 2 * size], device="cpu", pin_memory=True).to(\n'
            "    DEVICE, non_blocking=True\n)\n",
        ),
        (  # not as black has it, so that black was told to leave it alone
            "f(first_argument, second_argument, third_argument, fourth_argument, torch.zeros(3).cuda())\n",
            "f(first_argument, second_argument, third_argument, fourth_argument, torch.zeros(3).to(DEVICE))\n",
        ),
    ],
)
def test_a_projects_black_is_followed(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / ".pre-commit-config.yaml").write_text(BLACK)
    assert migrated(tmp_path, before).endswith(f"\n{after}")


def test_a_formatter_is_found_above_a_package_with_a_setup_of_its_own(tmp_path: Path) -> None:
    package = tmp_path / "application"
    package.mkdir()
    (package / "setup.py").write_text("")
    (tmp_path / ".pre-commit-config.yaml").write_text(BLACK)
    (package / "a.py").write_text(
        "import torch\nx = torch.ones(\n    number, device=torch.cuda.current_device(), dtype=torch.float16\n)\n"
    )
    assert migrate(tmp_path).changes[0].after.endswith("x = torch.ones(number, device=DEVICE, dtype=torch.float16)\n")


def test_ruffs_layout_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 80\n")
    after = migrated(tmp_path, 'assert weights.is_cuda, "weights should be on a device of some kind"\n')
    assert 'assert weights.device.type in ("cuda", "npu"), (\n    "weights should be' in after


def test_lines_stay_whole_in_a_file_that_keeps_to_no_width(tmp_path: Path) -> None:
    long = f"x = f({'a, ' * 50})\n"
    line = f"y = g({'b, ' * 30} c.is_cuda)\n"
    assert f"y = g({'b, ' * 30} c.device.type in (" in migrated(tmp_path, long * 3 + line)


@pytest.mark.parametrize(
    ("value", "second"), [("args.gpus", "args.gpus"), ("f(1)", 'os.environ["CUDA_VISIBLE_DEVICES"]')]
)
def test_two_variables_are_set_by_two_statements_where_one_is_too_long(tmp_path: Path, value: str, second: str) -> None:
    (tmp_path / "setup.cfg").write_text("[flake8]\nmax-line-length = 79\n")
    after = migrated(tmp_path, f'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = {value}\n')
    assert after.endswith(
        f'os.environ["CUDA_VISIBLE_DEVICES"] = {value}\nos.environ["ASCEND_RT_VISIBLE_DEVICES"] = {second}\n'
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "if not weights.is_cuda and weights.dtype == torch.float16:\n    x\n",
            'if (weights.device.type not in ("cuda", "npu")\n        and weights.dtype == torch.float16):\n',
        ),
        (
            "small = weights.is_cuda and f(weights)\n",
            'small = (\n    weights.device.type in ("cuda", "npu") and f(weights))\n',
        ),
        (
            "f([x.cuda(), 'mask2former_r50_8xb2-lsj-50e_coco-panoptic'])\n",
            "f([x.to(DEVICE),\n   'mask2former_r50_8xb2-lsj-50e_coco-panoptic'])\n",
        ),
        (
            f"f([('retinanet_r18_fpn_1x_coco.py', ('first',\n{' ' * 37}a_tensorrrr.cuda()))])\n",
            "f([('retinanet_r18_fpn_1x_coco.py',\n    ('first', a_tensorrrr.to(DEVICE)))])\n",
        ),
        (
            "f([('retinanet_r18_fpn_1xx_coco.py', ('cpu', t.cuda()))])\n",
            "f([('retinanet_r18_fpn_1xx_coco.py', ('cpu', t.to(DEVICE)))\n   ])\n",
        ),
        (
            "x = [\n    ('yolov3_mobilenetv2_320_coco.py', ('cpu', t.cuda())),\n]\n",
            f"x = [\n    ('yolov3_mobilenetv2_320_coco.py', ('cpu',\n{' ' * 40}t.to(DEVICE))),\n]\n",
        ),
        (
            "f('yolov3_mobilenetv2_320_coco.py', ('cpu', tensor.cuda()))\n",
            "f('yolov3_mobilenetv2_320_coco.py',\n  ('cpu', tensor.to(DEVICE)))\n",
        ),
        (
            "f(\n    sizes=[(2, 2), (4, 8)], with_stride=True, x=x.cuda())\n",
            "f(\n    sizes=[(2, 2), (4, 8)],\n    with_stride=True,\n    x=x.to(DEVICE))\n",
        ),
    ],
)
def test_a_projects_yapf_is_followed(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "setup.cfg").write_text("[yapf]\nbased_on_style = pep8\ncolumn_limit = 60\n")
    assert after in migrated(tmp_path, before)


def test_the_constants_are_laid_out_too_and_known_again(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 100\n")
    after = migrated(tmp_path, "x = f(x).cuda()\n")
    assert after.startswith(
        'import torch\n\nDEVICE = torch.device(\n    "npu" if hasattr(torch, "npu") else "cuda" if '
    )
    (tmp_path / "a.py").write_text(f"{after}y = y.cuda()\n")
    assert migrate(tmp_path).changes[0].after == f"{after}y = y.to(DEVICE)\n"


@pytest.mark.parametrize(
    ("name", "settings", "constant"),
    [
        ("setup.cfg", "[yapf]\nbased_on_style = pep8\n", "hasattr(torch, 'npu') else (\n    'cuda' if "),
        ("setup.cfg", "[flake8]\nmax-line-length = 79\n", "hasattr(torch, 'npu') else (\n    'cuda' if "),
        ("lint.sh", "black -l 100 .\n", "torch.device(\n    'npu' if hasattr(torch, 'npu') else 'cuda' if "),
        ("Makefile", "lint:\n\tblack --check .\n", "torch.device(\n    'npu'\n    if hasattr(torch, 'npu')\n"),
    ],
)
def test_constants_keep_to_the_layout_and_are_known_again(
    tmp_path: Path, name: str, settings: str, constant: str
) -> None:
    (tmp_path / name).write_text(settings)
    after = migrated(tmp_path, "x = ['a', 'b']\nx.cuda()\n")
    assert constant in after and '"' not in after
    assert migrated(tmp_path, f"{after.partition('import torch')[2].lstrip()}y.cuda()\n").count("hasattr(") == 1


def test_a_project_says_which_quotation_marks_it_uses(tmp_path: Path) -> None:
    (tmp_path / ".pre-commit-config.yaml").write_text("- id: yapf\n- id: double-quote-string-fixer\n")
    assert '"' not in migrated(tmp_path, "x.cuda()\n")


def test_a_backend_that_many_places_choose_is_a_constant(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.1.0\n")
    one = "torch.distributed.init_process_group('nccl')\n"
    choice = "'hccl' if DEVICE.type == 'npu' else 'nccl'"
    assert f"init_process_group({choice})" in migrated(tmp_path, one)
    several = migrated(tmp_path, 3 * one)
    assert several.count("init_process_group(BACKEND)") == 3 and f"\nBACKEND = {choice}\n\n" in several


def test_an_alias_of_types_needs_no_device(tmp_path: Path) -> None:
    after = migrated(tmp_path, "from typing import Union\nIndex = Union[int, torch.cuda.LongTensor]\nx.cuda()\n")
    assert "Index = Union[int, torch.cuda.LongTensor]\n" in after
