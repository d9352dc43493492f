"""Thirteen ways in which another converter breaks real code; here each keeps running."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate

BOTH = pytest.mark.parametrize("style", list(Style))


def migrated(folder: Path, text: str, style: Style, name: str = "a.py") -> str:
    """The text of a file after the migration of a project that is only this file."""
    (folder / name).write_text(text)
    result = migrate(folder, Goal(style))
    after = {change.path.name: change.after for change in result.changes}.get(name, text)
    ast.parse(after)
    return after


@BOTH
def test_1_members_of_an_enumeration_stay_apart(tmp_path: Path, style: Style) -> None:
    text = 'from enum import Enum\nclass Device(str, Enum):\n    CPU = "cpu"\n    CUDA = "cuda"\n    NPU = "npu"\n'
    assert migrated(tmp_path, text, style) == text
    alone = 'from enum import Enum\nclass Kind(Enum):\n    device = "cuda"\n'
    assert migrated(tmp_path, alone, style) == alone


@BOTH
def test_2_code_that_branches_by_backend_stays(tmp_path: Path, style: Style) -> None:
    text = (
        "import torch\n"
        "def backend(device):\n"
        "    if torch.cuda.is_available():\n        return 'nccl'\n"
        "    elif is_torch_npu_available():\n        return 'hccl'\n"
        "def sync(device):\n"
        "    if device == 'cuda':\n        torch.cuda.synchronize()\n"
        "    elif device == 'npu':\n        torch.npu.synchronize()\n"
    )
    assert migrated(tmp_path, text, style) == text


@BOTH
def test_3_stars_stay(tmp_path: Path, style: Style) -> None:
    text = "def to(v, *args, **kwargs):\n    return v.to(*args, **kwargs)\ncuda = None\n"
    assert migrated(tmp_path, text, style) == text


def test_4_torch_under_another_name_and_f_strings(tmp_path: Path) -> None:
    text = 'import torch as th\ndev = th.device(f"cuda")\nth.cuda.synchronize()\n'
    after = migrated(tmp_path, text, Style.npu)
    assert after == 'import torch as th\nimport torch_npu\ndev = th.device(f"npu")\nth.npu.synchronize()\n'
    portable = migrated(tmp_path, text, Style.portable)
    assert "dev = th.device(th.accelerator.cur" in portable and "th.accelerator.synchronize()" in portable


@BOTH
def test_5_guards_of_cuda_extensions_stay_shut(tmp_path: Path, style: Style) -> None:
    text = (
        "import torch\n"
        "def bias_act(x, impl='cuda'):\n"
        "    if impl == 'cuda' and x.device.type == 'cuda' and _init():\n"
        "        return _bias_act_cuda().apply(x)\n"
        "    return _bias_act_ref(x)\n"
        "def _bias_act_cuda():\n    class BiasActCuda(torch.autograd.Function): ...\n    return BiasActCuda\n"
        "def upsample(x):\n"
        "    if x.is_cuda:\n"
        "        return upsample_cuda.forward(x)\n"
        "    return x\n"
    )
    assert migrated(tmp_path, text, style) == text


@BOTH
def test_6_edits_over_several_lines_and_inside_f_strings(tmp_path: Path, style: Style) -> None:
    text = (
        "import torch\n"
        "x = torch.zeros(\n    2,\n    device=torch.device(\n        'cuda'  # here\n    ),\n)"
        ".cuda(\n    non_blocking=True\n)\n"
        "print(f\"{torch.zeros(1, device='cuda')} {torch.cuda.device_count()!r:>3}\")\n"
        "print(f'''{\n    torch.cuda.is_available()\n}''')\n"
    )
    after = migrated(tmp_path, text, style)
    assert "cuda" not in after.partition("x = ")[2]


@BOTH
def test_7_one_odd_file_does_not_end_the_run(tmp_path: Path, style: Style) -> None:
    (tmp_path / "odd.py").write_text("import torch\nx.to('cuda' if a else b)\nhasattr(model.module, 'cuda')\n")
    (tmp_path / "broken.py").write_text("print 'cuda'\n")
    (tmp_path / "good.py").write_text("import torch\ntorch.cuda.synchronize()\n")
    result = migrate(tmp_path, Goal(style))
    assert {"odd.py", "good.py"} == {change.path.name for change in result.changes}
    assert [finding.place.file.name for finding in result.left if finding.place] == ["broken.py"]


@BOTH
def test_8_no_import_is_removed(tmp_path: Path, style: Style) -> None:
    text = "import amp_C\nfrom apex import amp\nfrom torch.cuda import nvtx\nf(amp_C.multi_tensor_scale, nvtx)\n"
    assert migrated(tmp_path, text, style) == text


@BOTH
def test_9_only_names_that_exist_are_written(tmp_path: Path, style: Style) -> None:
    text = "import torch\nfrom torch.cuda.nvtx import range_push\nrange_push('a')\nt = torch.cuda.temperature()\n"
    text += "c = torch.cuda.get_device_capability()\n"
    assert migrated(tmp_path, text, style) == text
    codes = {finding.code for finding in migrate(tmp_path, Goal(style)).left}
    assert codes == {"NPK201", "NPK202"}


@BOTH
def test_10_keys_of_dictionaries_stay(tmp_path: Path, style: Style) -> None:
    text = "rng_states['cuda'] = state\nx = {'cuda': 1}['cuda']\ndevices.get('cuda')\n"
    assert migrated(tmp_path, text, style) == text


def test_11_pairs_of_device_and_backend(tmp_path: Path) -> None:
    text = (
        "import torch.distributed as dist\nimage = 'nvidia/cuda:11.8'\ndist.init_process_group('cpu:gloo,cuda:nccl')\n"
    )
    after = migrated(tmp_path, text, Style.npu)
    assert "init_process_group('cpu:gloo,npu:hccl')" in after and "'nvidia/cuda:11.8'" in after
    portable = migrated(tmp_path, text, Style.portable)
    assert "('cpu:gloo,npu:hccl' if hasattr(torch, 'npu') else 'cpu:gloo,cuda:nccl')" in portable


@BOTH
def test_12_calls_are_not_repeated_and_get_no_device(tmp_path: Path, style: Style) -> None:
    text = "y = x.to(non_blocking=True)\nz = x.to(next(it))\ncuda = 1\n"
    assert migrated(tmp_path, text, style) == text


@BOTH
def test_13_imports_run_and_a_second_run_changes_nothing(tmp_path: Path, style: Style) -> None:
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
        "def f():\n    import torch\n    torch.cuda.synchronize()\n    return torch.zeros(1).cuda()\n"
    )
    after = migrated(tmp_path, text, style)
    assert after.startswith(text.split("    torch.cuda")[0]), "torch is imported where it was"
    assert "torch.cuda.synchronize()" not in after and ".cuda()" not in after
    assert migrated(tmp_path, after, style) == after
