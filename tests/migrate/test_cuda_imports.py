"""A file that no NPU machine can import stays whole; one that can do without the library is migrated."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.migrate.test_for_cuda_only import migrated

from npukit.report import Severity

USE = "x = torch.ones(1, device='cuda')\n"


@pytest.mark.parametrize(
    "text",
    [
        "from flash_attn import flash_attn_func\n",
        "from transformer_engine.pytorch import (\n    Linear,\n    is_mxfp8_available,\n)\n",
        "import triton\nimport triton.language as tl\n",
        "from kernel.triton import rms_norm\n",
        "from bitsandbytes.optim.optimizer import Optimizer2State\n",
        "from torch.utils.cpp_extension import load\nwkv = load(\n    name='wkv', sources=['wkv.cpp', 'wkv.cu']\n)\n",
        "from torch.utils.cpp_extension import load\n"
        "if missing:\n    wkv = load('wkv', ['wkv.cu'])\nelse:\n    import wkv\n",
        "from stash import copy_kernel\ndef stash(x):\n    copy_kernel[grid](x)\n",
    ],
)
def test_a_file_that_cannot_be_imported_stays_and_is_reported(tmp_path: Path, text: str) -> None:
    files = {"stash": "import triton\n"}
    result = migrated(tmp_path, model=text + USE, **files)
    assert not result.changes
    (note,) = [finding for finding in result.left if finding.code == "NPK101"]
    assert note.what == "model.py is for CUDA only" and note.why.startswith("It needs ")
    assert note.severity is Severity.warning


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from flash_attn import flash_attn_func\nexcept ImportError:\n    flash_attn_func = None\n",
        "def attention(q):\n    from flash_attn import flash_attn_func\n",
        "import triton\nbench = triton.testing.do_bench\n",
        "from kernel.triton.norm import HAS_TRITON\n",
        "import bitsandbytes as bnb\n",
        "if HAVE_TRITON:\n    import triton\n    @triton.jit\n    def scale(x): ...\n",
        "from torch.utils.cpp_extension import load\nops = load(\n    name='ops', sources=['ops.cpp']\n)\nx = 'a.cu'\n",
        "from stash import copy\ndef stash(x):\n    copy(x)\n    table[x](x)\n",
    ],
)
def test_a_file_that_can_do_without_is_migrated(tmp_path: Path, text: str) -> None:
    files = {"stash": "import triton\n"}
    changes = migrated(tmp_path, model=text + USE, **files).changes
    assert [change.path.name for change in changes] == ["model.py"]


def test_a_test_needs_what_is_loaded_on_the_way(tmp_path: Path) -> None:
    files = {
        "helpers": "import transformer_engine.pytorch as te\n",
        "test_helpers": f"from helpers import te\ndef test_it():\n    {USE}",
        "test_other": f"def test_it():\n    {USE}",
    }
    assert [change.path.name for change in migrated(tmp_path, **files).changes] == ["test_other.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test_te_layers", "# transformer_engine\n"),
        ("test_fp8_comm", ""),
        ("bnb", ""),
    ],
)
def test_a_test_of_cuda_s_own_software_stays(tmp_path: Path, name: str, text: str) -> None:
    assert not migrated(tmp_path, **{name: f"{text}def test_it():\n    {USE}"}).changes
    assert migrated(tmp_path, test_cuda_or_not=f"def test_it():\n    {USE}").changes


def test_the_report_names_the_first_place_in_the_file(tmp_path: Path) -> None:
    uses = "".join(f"@{name}\ndef f_{name}(): ...\n" for name in ("custom_fwd", "autocast", "custom_bwd"))
    text = f"from flash_attn import attend\nfrom torch.cuda.amp import autocast, custom_bwd, custom_fwd\n{uses}"
    (note,) = (finding for finding in migrated(tmp_path, model=text).left if finding.code == "NPK101")
    assert note.place is not None and note.place.line == 5


def test_a_constant_that_only_code_for_cuda_uses_stays(tmp_path: Path) -> None:
    text = "DEVICE = 'cuda'\ndef test_it():\n    pytest.importorskip('mamba_ssm')\n    run(DEVICE)\n"
    assert not migrated(tmp_path, test_layers=text).changes
    assert migrated(tmp_path, test_layers=f"{text}def test_any():\n    run(DEVICE)\n").changes


_WRAPPER = """
try:
    import scan_cuda
except ImportError:
    scan_cuda = None

def scan(x):
    return scan_cuda.forward(x)
"""
_CALLS = {
    "from its file": "from wrapper import scan\ndef run():\n    return scan({})\n",
    "from the package that passes it on": "from ops import scan\ndef run():\n    return scan({})\n",
    "as a part of its module": "import wrapper as ops\ndef run():\n    return ops.scan({})\n",
    "by another name": "import wrapper\nprefix_sum = wrapper.scan\ndef run():\n    return prefix_sum({})\n",
}


@pytest.mark.parametrize("text", _CALLS.values(), ids=_CALLS)
def test_code_that_calls_the_wrapper_of_a_kernel_stays(tmp_path: Path, text: str) -> None:
    files = {"wrapper": _WRAPPER, "ops": "from wrapper import *\n"}
    moved = text.format("torch.ones(1, device='cuda')")
    changes = migrated(tmp_path, model=moved, other=f"def run():\n    {USE}", **files).changes
    assert [change.path.name for change in changes] == ["other.py"]


def test_evidence_passes_two_imports_to_a_test_and_one_to_an_application(tmp_path: Path) -> None:
    """What is built on a wrapper moves to NPUs with another wrapper; a test of it needs the kernel."""
    layer = "from wrapper import scan\ndef layer(x):\n    return scan(x)\n"
    use = "from layers import layer\ndef {}():\n    return layer(torch.ones(1, device='cuda'))\n"
    files = {"wrapper": _WRAPPER, "layers": layer, "train": use.format("main"), "test_layers": use.format("test_layer")}
    changes = migrated(tmp_path, **files).changes
    assert [change.path.name for change in changes] == ["train.py"]


def test_a_class_around_cuda_s_own_library_stays(tmp_path: Path) -> None:
    text = "import ctypes\nclass Runtime:\n    def __init__(self):\n        self.lib = ctypes.CDLL('libcudart.so')\n"
    method = "    def copy(self):\n        return torch.ones(1, device='cuda')\n"
    assert not migrated(tmp_path, runtime=text + method).changes
    assert migrated(tmp_path, runtime=text.replace("libcudart", "libc") + method).changes


@pytest.mark.parametrize(("kernels", "stays"), [(2, True), (1, False)])
def test_one_mark_for_all_tests_stays_where_most_of_them_need_a_kernel(
    tmp_path: Path, kernels: int, stays: bool
) -> None:
    mark = "from wrapper import scan\nimport pytest\npytestmark = pytest.mark.skipif(not torch.cuda.is_available())\n"
    need = "def test_{0}():\n    scan({0})\n"
    tests = "".join(need.format(at) for at in range(kernels)) + "def test_plain():\n    assert 1\n"
    assert bool(migrated(tmp_path, wrapper=_WRAPPER, test_scan=mark + tests).changes) != stays


def test_a_second_run_in_one_process_sees_what_changed_elsewhere(tmp_path: Path) -> None:
    use = "import torch\nfrom scan import scan\ndef run(x):\n    return scan(x.cuda())\n"
    kernel = "import triton\n@triton.jit\ndef kernel(x): ...\ndef scan(x):\n    return kernel[1](x)\n"
    assert not migrated(tmp_path, model=use, scan=kernel).changes
    changes = migrated(tmp_path, model=use, scan="def scan(x):\n    return x.cumsum(0)\n").changes
    assert [change.path.name for change in changes] == ["model.py"]
