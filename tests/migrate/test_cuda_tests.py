"""Tests that need a library or kernels for CUDA stay whole, with one note; tests of anything else are migrated."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.migrate.test_for_cuda_only import BODY, SKIP, migrated

from npukit.report import Severity

PROJECT = {
    "core__api": "try:\n    from core.inner import HAVE_TE\n    HAVE_GTP = HAVE_TE\nexcept ImportError: pass\n",
    "core__inner": "try:\n    import transformer_engine\n    HAVE_TE = True\nexcept ImportError: pass\n",
    "core__ops": "try:\n    import triton\nexcept ImportError:\n    triton = MagicMock()\n"
    "@triton.jit\ndef _kernel(x): ...\n"
    "def permute(x, few):\n    if few:\n        _kernel[(1,)](x)\n    else:\n        _kernel[(2,)](x)\n",
    "core__trace": "def trace_cuda(x):\n    from core.triton_ops import trace\n    return trace(x)\n",
    "core__blur": "def blur(x):\n    if x.is_cuda:\n        from core.triton_ops import blur_cuda\n"
    "        return blur_cuda(x)\n    return x + 1\n",
    "core__optim": "from bitsandbytes.optim.optimizer import Optimizer2State\ndef groups(model): ...\n",
    "core__layers": "from .ops import permute\ndef run(x):\n    return permute(x, True)\n",
}


@pytest.mark.parametrize(
    "text",
    [
        "from core.api import HAVE_GTP\nif not HAVE_GTP: pytest.skip('no GTP', allow_module_level=True)\n"
        f"def test_it():\n{BODY}",
        "from core.api import HAVE_GTP\npytestmark = pytest.mark.skipif(not HAVE_GTP, reason='no')\n"
        f"def test_it():\n{BODY}",
        "@pytest.mark.skipif(not is_te_min_version('1.9'), reason='old')\nclass TestIt:\n"
        f" {SKIP} def test_it(self):\n {BODY}",
        "needs = [pytest.mark.skipif(deep_gemm is None, reason='no')]\nclass TestIt:\n pytestmark = needs\n"
        f" def test_it(self):\n {BODY}",
        f"from core.trace import trace_cuda\ndef test_it():\n{BODY}    trace_cuda(x)\n",
        "from core.optim import groups\ndef run():\n    x = groups(torch.ones(1, device='cuda'))\n"
        "def check(rank):\n    run()\ndef test_it():\n    spawn(check, 4)\n",
        f"@require_flash_attn\ndef test_it():\n{BODY}",
        f"@pytest.mark.skipif(lacks_it(), reason='requires Transformer Engine')\ndef test_it():\n{BODY}",
        "def check(x):\n    try:\n        import deep_ep\n    except ImportError:\n        pytest.skip('no')\n"
        f"def test_it():\n{BODY}    check(x)\n",
        f"def test_it():\n    from core.ops import permute\n{BODY}    permute(x, False)\n",
        "from core.layers import run\nclass TestIt:\n def _run(self, x):\n  return run(x)\n"
        f" def test_it(self):\n {BODY}     y = self._run(x)\n",
        f"from core.ops import permute\n@pytest.fixture\ndef moved():\n{BODY}    return permute(x, True)\n"
        "def test_it(moved):\n    assert moved.is_cuda\n",
    ],
)
def test_what_needs_a_library_stays_whole_with_one_note(tmp_path: Path, text: str) -> None:
    result = migrated(tmp_path, **PROJECT, test_it=text)
    assert not result.changes
    notes = [finding for finding in result.left if finding.place and finding.place.file.name == "test_it.py"]
    assert [(note.code, note.severity) for note in notes if note.code == "NPK101"] == [("NPK101", Severity.note)]


@pytest.mark.parametrize(
    "text",
    [
        f"@pytest.mark.skipif(HAVE_TE, reason='tests what is done without it')\ndef test_it():\n{BODY}",
        f"@pytest.mark.skipif(not torch.cuda.is_available(), reason='requires a GPU')\ndef test_it():\n{BODY}",
        f"def test_it(fp8):\n    if fp8 and not HAVE_TE: pytest.skip('FP8 requires Transformer Engine')\n{BODY}",
        f"from core.api import other\n@pytest.mark.skipif(not other(), reason='no')\ndef test_it():\n{BODY}",
        f"def test_it():\n    if HAVE_TE:\n        build_te()\n{BODY}",
        f"from core.blur import blur\ndef test_it():\n{BODY}    assert blur(x.cuda()).shape == x.shape\n",
    ],
)
def test_what_runs_without_it_is_migrated(tmp_path: Path, text: str) -> None:
    changes = migrated(tmp_path, **PROJECT, test_it=text).changes
    assert [change.path.name for change in changes] == ["test_it.py"] and "torch.accelerator.cur" in changes[0].after


def test_only_the_tests_that_need_it_stay(tmp_path: Path) -> None:
    needs = "@pytest.mark.skipif(not HAVE_TE, reason='no')\n"
    text = f"{needs}def test_te():\n{BODY}def test_any():\n{BODY}"
    (change,) = migrated(tmp_path, test_it=text).changes
    assert needs + "def test_te():\n" + BODY in change.after and change.after.endswith(
        "device=torch.accelerator.current_accelerator())\n"
    )


def test_a_guard_stays_in_front_of_what_a_class_prepares(tmp_path: Path) -> None:
    setup = " def setup_method(self):\n  from core.transformer_engine import TELinear\n  self.layer = TELinear()\n"
    helper = setup.replace("setup_method", "_make")
    result = migrated(
        tmp_path, test_it=f"class TestIt:\n{helper} {SKIP} def test_it(self):\n  self._make()\n  self.layer.cuda()\n"
    )
    assert not result.changes


def test_a_guard_that_says_it_is_for_quantization_stays(tmp_path: Path) -> None:
    text = "def load():\n    if not torch.cuda.is_available():\n        raise OSError('quantization requires CUDA')\n"
    assert not migrated(tmp_path, model=text).changes
