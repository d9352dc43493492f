"""A file that no NPU machine can import stays whole; one that can do without the library is migrated."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.migrate.test_for_cuda_only import migrated

from npukit.report import Severity

USE = "x = torch.ones(1, device='cuda')\n"
LOADERS = """class OpsLoader(Loader):
    REGISTRY = [OpsCudaExtension]
class AnyLoader(Loader):
    REGISTRY = [CpuExtension, CudaExtension]
"""


@pytest.mark.parametrize(
    "text",
    [
        "from flash_attn import flash_attn_func\n",
        "from transformer_engine.pytorch import (\n    Linear,\n    is_mxfp8_available,\n)\n",
        "import triton\nimport triton.language as tl\n",
        "from kernel.triton import rms_norm\n",
        "from bitsandbytes.optim.optimizer import Optimizer2State\n",
        "from loaders import OpsLoader\nops = OpsLoader().load()\n",
    ],
)
def test_a_file_that_cannot_be_imported_stays_and_is_reported(tmp_path: Path, text: str) -> None:
    result = migrated(tmp_path, model=text + USE, loaders=LOADERS)
    assert not result.changes
    (note,) = [each for each in result.left if each.code == "NPK101"]
    assert note.what == "model.py is for CUDA only" and "cannot be imported without" in note.why
    assert note.severity is Severity.warning


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from flash_attn import flash_attn_func\nexcept ImportError:\n    flash_attn_func = None\n",
        "def attention(q):\n    from flash_attn import flash_attn_func\n",
        "import triton\nbench = triton.testing.do_bench\n",
        "from kernel.triton.norm import HAS_TRITON\n",
        "import bitsandbytes as bnb\n",
        "from loaders import AnyLoader\nops = AnyLoader().load()\n",
        "import engine\n",  # which loads kernels: not a test
    ],
)
def test_a_file_that_can_do_without_is_migrated(tmp_path: Path, text: str) -> None:
    engine = "from loaders import OpsLoader\nops = OpsLoader().load()\n"
    changes = migrated(tmp_path, model=text + USE, loaders=LOADERS, engine=engine).changes
    assert [each.path.name for each in changes] == ["model.py"]


def test_a_test_needs_what_is_loaded_on_the_way(tmp_path: Path) -> None:
    files = {
        "loaders": LOADERS,
        "models": "from loaders import OpsLoader\nops = OpsLoader().load()\n",
        "engine": "from models import ops\n",
        "helpers": "import transformer_engine.pytorch as te\n",
        "test_engine": f"from engine import ops\ndef test_it():\n    {USE}",
        "test_helpers": f"from helpers import te\ndef test_it():\n    {USE}",
        "test_other": f"def test_it():\n    {USE}",
    }
    assert [each.path.name for each in migrated(tmp_path, **files).changes] == ["test_other.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test_cuda", "# onnxruntime's CUDAExecutionProvider\n"),
        ("test_te_layers", "# transformer_engine\n"),
        ("test_fp8_comm", ""),
    ],
)
def test_a_test_of_cuda_s_own_software_stays(tmp_path: Path, name: str, text: str) -> None:
    assert not migrated(tmp_path, **{name: f"{text}def test_it():\n    {USE}"}).changes
    assert migrated(tmp_path, test_cuda_or_not=f"def test_it():\n    {USE}").changes
