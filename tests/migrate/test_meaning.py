"""What code means on CUDA and on the CPU stays as it was; what would fail on an NPU is changed or reported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.migrate.analysis import analyze
from npukit.migrate.migration import Migration, migrate


def migrated(folder: Path, **files: str) -> Migration:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(path.suffix or ".py").write_text(text)
        if not path.suffix:
            ast.parse(text)
    return migrate(folder)


ACCELERATOR = "torch.accelerator.current_accelerator()"


def after(folder: Path, text: str) -> str:
    """What becomes of a file, without its head."""
    (change,) = migrated(folder, a=f"import torch\nif 0: START = 0\n{text}").changes
    return change.after.partition("if 0: START = 0\n")[2]


def test_what_is_moved_to_the_current_card_moves_from_every_other(tmp_path: Path) -> None:
    move = 'if x.device != torch.device("cuda"):\n    x = x.to(torch.device("cuda"))\n'
    assert after(tmp_path, move).endswith("    x = x.to(torch.accelerator.current_accelerator())\n")
    refuse = 'if x.device != torch.device("cuda"):\n    raise ValueError\n'
    assert 'x.device.type not in ("cuda", "npu")' in after(tmp_path, refuse)  # also where DEVICE is the CPU


SCALED = """import torch
scaler = torch.amp.GradScaler()
with torch.cuda.amp.autocast(), torch.autocast("cuda", dtype=torch.float16):
    print(scaler.is_enabled(), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
"""


def test_mixed_precision_stays_off_where_there_is_no_card(tmp_path: Path) -> None:
    (change,) = migrated(tmp_path, a=SCALED).changes
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""}
    for text in (change.before, change.after):
        run = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout == "False torch.float32\n"


@pytest.mark.parametrize("other", ["garbage_collection_threshold:0.8", "max_split_size_mb:512"])
def test_settings_that_torch_npu_refuses_together_stay_with_cuda(tmp_path: Path, other: str) -> None:
    both = f"{other},expandable_segments:True"
    yaml = f"env:\n  PYTORCH_CUDA_ALLOC_CONF: {both}\n"
    python = f'import os\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{both}"\n'
    shell = f"export PYTORCH_CUDA_ALLOC_CONF={both}\n"
    assert not migrated(tmp_path, **{"a.yaml": yaml, "b": python, "c.sh": shell}).changes


def test_device_ids_stay_where_the_backend_is_never_the_cpus(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.2,<=2.5.1\n")
    model = "model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[rank])\n"
    assert "device_ids=[rank]" in after(tmp_path, model)


def test_what_a_test_expects_goes_with_its_guard(tmp_path: Path) -> None:
    text = (
        "import torch, pytest\nfrom ops_triton import scale\n"
        "def test_it():\n    if not torch.cuda.is_available():\n        pytest.skip('needs a GPU')\n"
        "    x = make()\n    assert x.is_cuda\n"
    )
    (change,) = migrated(tmp_path, test_it=text).changes
    assert "    assert x.device.type in ('cuda', 'npu')\n" in change.after


def test_what_tests_replace_is_still_called(tmp_path: Path) -> None:
    library = "import torch\ndef make():\n    return torch.zeros(1, device=torch.cuda.current_device())\n"
    test = (
        "import torch\nfrom unittest.mock import patch\n"
        "@patch.object(torch.cuda, 'current_device', return_value='cpu')\n"
        "def test_make(_): assert make().device.type == 'cpu'\n"
    )
    result = migrated(tmp_path, a=library, test_a=test)
    assert [change.path.name for change in result.changes] == ["a.py"]
    assert "device_module.current_device()" in result.changes[0].after
    assert [finding.place.line for finding in result.left if finding.code == "NPK123" and finding.place] == [3]
    (tmp_path / "test_a.py").unlink()
    assert "device=torch.accelerator.current_device_index())" in migrate(tmp_path).changes[0].after


def test_a_choice_asks_what_tests_replace(tmp_path: Path) -> None:
    choice = 'import torch\ndevice = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
    test = "def test_it(monkeypatch):\n    monkeypatch.setattr('torch.cuda.is_available', lambda: False)\n"
    after = migrated(tmp_path, a=choice, test_a=test).changes[0].after
    assert 'torch.device(\n    "npu" if hasattr(torch, "npu") and torch.npu.is_available()' in after
    assert 'else "cuda" if torch.cuda.is_available()' in after and after.count("is_available") == 2


def test_a_wrapper_is_found_below_lib(tmp_path: Path) -> None:
    (tmp_path / "lib" / "ops").mkdir(parents=True)
    (tmp_path / "lib" / "ops" / "nms_gpu.py").write_text("from ._ext import nms\n")
    (tmp_path / "lib" / "ops" / "wrap.py").write_text(
        "import torch\nif torch.cuda.is_available():\n    from ops.nms_gpu import nms_gpu\n"
    )
    assert not migrate(tmp_path).changes


@pytest.mark.parametrize(
    ("name", "text", "codes"),
    [
        ("a.py", "import os\ne = {**os.environ, 'CUDA_VISIBLE_DEVICES': g}\n", ["NPK130"]),
        ("a.yaml", "env:\n  CUDA_VISIBLE_DEVICES: 0\n", ["NPK150"]),
        ("Dockerfile", "ENV CUDA_VISIBLE_DEVICES 0\n", ["NPK150"]),
        ("a.sh", "unset CUDA_VISIBLE_DEVICES\n", ["NPK150"]),
        ("a.sh", "gpus=(${CUDA_VISIBLE_DEVICES//,/ })\nn=${#CUDA_VISIBLE_DEVICES}\n", ["NPK150", "NPK150"]),
        ("a.sh", 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES}"\n', ["NPK150"]),
        ("a.py", "import torch\ntorch.set_default_tensor_type('torch.cuda.FloatTensor')\n", ["NPK160"]),
        ("a.py", "import torch\nisinstance(s, torch.cuda.amp.GradScaler)\n", ["NPK103"]),
        ("a.py", "import torch\nif torch.backends.cudnn.is_available(): f()\n", ["NPK202"]),
        ("a.py", "import ray.util.collective as cc\ncc.init_collective_group(2, 0)\n", ["NPK202"]),
        ("a.py", "import torch\nif device.type[:4] == 'cuda': f()\n", ["NPK112"]),
        ("a.py", "import torch\nmatch device.type:\n    case 'cuda': f()\n", ["NPK112"]),
        ("a.py", "import torch\nx.init_data('cuda')\n", ["NPK111"]),
        ("a.py", "@parameterized.expand([('cpu',), ('cuda',)])\ndef test(self, device): ...\n", ["NPK111"]),
        ("a.py", "import torch\nfrom torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
         "scaler = ShardedGradScaler()  # on cuda\n", ["NPK202"]),
        ("a.py", "def f():\n    try:\n        import apex\n    except ImportError as error:\n"
         "        raise ImportError('install apex') from error\n", ["NPK401"]),
        ("a.py", "import torch_fidelity\nm = torch_fidelity.calculate_metrics(input1='a', cuda=True)\n", ["NPK406"]),
        ("a.py", "import torch\ncopies = torch.nn.parallel.replicate(model, devices)\n", ["NPK712"]),
        ("a.sh", "torchrun train.py --tf32 True --optim paged_adamw_8bit\n", ["NPK406", "NPK406"]),
        ("a.py", "import torch\nfrom ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler):\n"
         "    def initialize(self, c):\n        gpu = c.system_properties.get('gpu_id')\n"
         "        self.d = torch.device('cuda:' + str(gpu) if torch.cuda.is_available() else 'cpu')\n", ["NPK402"]),
    ],
)  # fmt: skip
def test_what_fails_on_npus_is_reported(tmp_path: Path, name: str, text: str, codes: list[str]) -> None:
    (tmp_path / name).write_text(text)
    result = migrate(tmp_path)
    assert [finding.code for finding in result.left if finding.code in codes] == codes
    assert not result.changes


def test_a_modality_is_no_library_of_nvidia(tmp_path: Path) -> None:
    text = 'if torch.cuda.is_available():\n    run({"modality_inputs": x}, tampered=1)\n'
    assert "torch.accelerator.is_available()" in after(tmp_path, text)


def test_rows_of_a_table_that_a_test_goes_through_name_the_device(tmp_path: Path) -> None:
    text = after(
        tmp_path,
        "import pytest, torch\nROWS = [(4, 'cpu')]\nif torch.cuda.is_available():\n    ROWS.append((4, 'cuda'))\n"
        "    NAMES.append((4, 'cuda'))\n@pytest.mark.parametrize('steps, device', ROWS)\n"
        "def test_rows(steps, device): ...\n",
    )
    assert "ROWS.append((4, torch.accelerator.current_accelerator()" in text and "NAMES.append((4, 'cuda'))" in text


@pytest.mark.parametrize(("otherwise", "constants"), [("HAS = False", 0), ("raise SystemExit('install torch')", 1)])
def test_a_file_that_goes_on_without_torch_gets_no_constant(tmp_path: Path, otherwise: str, constants: int) -> None:
    head = f"try:\n    import torch\n    HAS = True\nexcept ImportError:\n    {otherwise}\n"
    asks = "def a(): return HAS and torch.cuda.device_count()\ndef b(): return HAS and torch.cuda.device_count()\n"
    (change,) = migrated(tmp_path, a=head + asks, **{"requirements.txt": "torch>=2.0\n"}).changes
    assert change.after.count("\ndevice_module = ") == constants
    assert change.after.count("(torch.npu if hasattr(torch") == (0 if constants else 2)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("CUDA not available", "accelerator not available"),
        ("CUDA is required for offload check.", "An accelerator is required for offload check."),
        ("requires CUDA", "requires an accelerator"),
        ("needs a CUDA device", "needs an accelerator"),
        ("more than torch.cuda.device_count()", "more than torch.cuda.device_count()"),
    ],
)
def test_why_a_test_is_skipped_goes_with_the_condition(tmp_path: Path, before: str, now: str) -> None:
    mark = "@pytest.mark.skipif(not {0}.is_available(), reason='{1}')\ndef test_it():\n    ...\n"
    skip = "def test_that():\n    if {0}.device_count() < 2:\n        pytest.skip('{1}')\n"
    text = mark + skip
    assert after(tmp_path, text.format("torch.cuda", before)) == text.format("torch.accelerator", now)


def test_a_condition_that_only_moves_a_tensor_is_not_about_kernels(tmp_path: Path) -> None:
    text = "from ops_triton import scale\ndef f(x):\n    if not {}:\n        x = x.{}\n"
    before, now = (
        text.format("x.is_cuda", "cuda()"),
        text.format('x.device.type in ("cuda", "npu")', f"to({ACCELERATOR})"),
    )
    assert after(tmp_path, before) == now.replace("not x.device.type in", "x.device.type not in")


def test_a_function_that_needs_a_card_has_one_name_for_its_module(tmp_path: Path) -> None:
    text = "def measure(device):\n    {0}.reset_peak_memory_stats(device)\n    {0}.synchronize(device)\n"
    assert "torch.accelerator.synchronize(device)" in after(tmp_path, text.format("torch.cuda"))


@pytest.mark.parametrize("test", ["not enabled or not cudnn.enabled", "not cudnn.enabled"])
def test_a_guard_that_also_asks_for_cudnn_stays(tmp_path: Path, test: str) -> None:
    text = (
        f"from torch.backends import cudnn\ndef use_ours(x):\n    if {test}:\n        return False\n"
        "    if x.device.type != 'cuda':\n        return False\n    return True\n"
    )
    assert not migrated(tmp_path, ops=text).changes
    assert migrated(tmp_path, ops=text.replace("cudnn.enabled", "ready")).changes


def test_a_class_of_another_file_keeps_its_own_cuda(tmp_path: Path) -> None:
    boxes = "class Boxes:\n def cuda(self, *args):\n  return Boxes(self.tensor.cuda(*args))\n"
    text = "import torch\nfrom boxes import Boxes\nboxes = Boxes()\nboxes = boxes.cuda()\n"
    assert not migrated(tmp_path, boxes=boxes, use=text).changes


def test_a_function_about_cudas_cards_that_runs_nvidia_smi_stays(tmp_path: Path) -> None:
    text = (
        "import subprocess\nimport torch\ndef {}(jetson):\n"
        " if jetson:\n  return torch.cuda.device_count()\n return subprocess.check_output(['nvidia-smi'])\n"
    )
    assert not migrated(tmp_path, a=text.format("cuda_device_count")).changes
    assert migrated(tmp_path, a=text.format("train")).changes


def test_a_test_wants_its_cards(tmp_path: Path) -> None:
    text = "import torch\ndef step(rank: int):\n    torch.cuda.set_device(rank)\n    model.to(rank)\n"
    changes = {change.path.name: change.after for change in migrated(tmp_path, a=text, test_a=text).changes}
    assert all("model.to(rank)" in change for change in changes.values())


@pytest.mark.parametrize("device", ['torch.device("cuda")', '"cuda"'])
def test_a_device_constant_of_the_file_stays_its_only_one(tmp_path: Path, device: str) -> None:
    text = f"import torch\n\nDEVICE = {device}\n\n\ndef move(x):\n    return x.to(DEVICE).cuda()\n"
    (change,) = migrated(tmp_path, a=text).changes
    assert "TORCH_DEVICE" not in change.after
    assert change.after.endswith("    return x.to(DEVICE).to(DEVICE)\n")
    assert change.after.count("\n") == text.count("\n")
    (tmp_path / "a.py").write_text(change.after)
    assert not migrate(tmp_path).changes


def test_a_device_constant_that_is_set_again_is_not_relied_on(tmp_path: Path) -> None:
    text = 'import torch\nDEVICE = "cuda"\nif old:\n    DEVICE = "cpu"\ny = x.cuda()\n'
    (change,) = migrated(tmp_path, a=text).changes
    assert "y = x.to(torch.accelerator.current_accelerator())" in change.after


def test_an_attribute_that_decides_about_a_cards_capability_stays(tmp_path: Path) -> None:
    text = (
        "import torch\nclass Attend:\n def __init__(self):\n  self.flash = torch.cuda.is_available() and new\n"
        "  if not self.flash:\n   return\n  card = torch.cuda.get_device_properties(torch.device('cuda'))\n"
        "  self.config = card.major == 8\n def forward(self, x):\n  if self.flash:\n   return attend(x, self.config)\n"
    )
    assert not migrated(tmp_path, a=text).changes
    moves = "class A:\n def f(self):\n  self.gpu = torch.cuda.is_available()\n  if self.gpu:\n   x.cuda()\n"
    assert migrated(tmp_path, a=f"import torch\n{moves}").changes


def test_a_named_choice_of_backends_gets_one_more(tmp_path: Path) -> None:
    text = 'from typing import Literal\nDistributedBackend = Literal["gloo", "mpi", "nccl"]\n'
    (change,) = migrated(tmp_path, a=text).changes
    assert change.after == text.replace('"nccl"', '"nccl", "hccl"')


def test_names_of_amp_are_set_once_and_their_uses_stay(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.2,<=2.5.1\n")
    function = (
        "\n\nclass F(torch.autograd.Function):\n    @staticmethod\n    @custom_fwd(cast_inputs=torch.float16)\n"
        "    def forward(ctx, x):\n        return x\n\n    @staticmethod\n    @custom_bwd\n"
        "    def backward(ctx, g):\n        return g\n"
    )
    text = f"import torch\nfrom torch.cuda.amp import custom_bwd, custom_fwd\n{function}"
    (change,) = migrated(tmp_path, a=text).changes
    assert "@device_module.amp.custom_fwd(cast_inputs=torch.float16)" in change.after
    assert "@device_module.amp.custom_bwd\n" in change.after


def test_arguments_that_torch_npu_does_not_take_are_reported(tmp_path: Path) -> None:
    text = "import torch\ntorch.cuda.memory._record_memory_history({})\n"
    assert [finding.code for finding in migrated(tmp_path, a=text.format("True, trace_alloc_max_entries=9")).left] == [
        "NPK202"
    ]
    assert not migrated(tmp_path, a=text.format("max_entries=9")).left


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("MAJOR = int(torch.version.cuda.split('.')[0])", "error"),
        ("MAJOR = int(torch.version.cuda.split('.')[0]) if torch.version.cuda else 0", "warning"),
        ("HAS_CUDA = torch.version.cuda is not None", "warning"),
        ("def major():\n    return torch.version.cuda.split('.')[0]", "warning"),
        ("try:\n    MAJOR = torch.version.cuda.split('.')[0]\nexcept AttributeError:\n    MAJOR = 0", "note"),
    ],
)
def test_a_file_that_cannot_be_imported_without_cuda_s_version_is_an_error(
    line: str, severity: str, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(f"import torch\n{line}\n")
    (finding, *_) = [finding for finding in analyze([tmp_path]).findings if finding.code == "NPK202"]
    assert finding.severity.name == severity


def test_a_function_called_cuda_of_the_projects_own_module_keeps_its_name(tmp_path: Path) -> None:
    call = "import torch\nfrom ours import utils\nbatch = utils.cuda(batch, device=device)\n"
    (tmp_path / "ours").mkdir()
    assert not migrated(tmp_path, ours__utils="def cuda(x, **options): return x\n", train=call).changes


def test_a_test_that_is_skipped_without_an_accelerator_names_the_one_that_is_there(tmp_path: Path) -> None:
    text = (
        "import pytest\n@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')\n"
        "def test_it():\n    config.device = 'cuda'\n    run(config)\n"
    )
    text_after = after(tmp_path, text)
    assert "skipif(not torch.accelerator.is_available()" in text_after
    assert "config.device = torch.accelerator.current_accelerator().type" in text_after


def test_torch_that_comes_with_everything_of_another_module_is_torch(tmp_path: Path) -> None:
    (change,) = migrated(tmp_path, a="from model.utils import *\ntorch.cuda.synchronize()\n").changes
    assert "torch.accelerator.synchronize()" in change.after
