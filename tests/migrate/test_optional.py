"""What runs only with a library for CUDA stays, and what only looks like it does not."""

from __future__ import annotations

from pathlib import Path

from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate


def after(tmp_path: Path, text: str, name: str = "a.py") -> str:
    (tmp_path / name).write_text(f"import torch\n{text}")
    return "".join(change.after for change in migrate(tmp_path / name).changes)


def test_what_needs_an_optional_library_stays(tmp_path: Path) -> None:
    text = after(
        tmp_path,
        "def first(x):\n    if has_nvml:\n        index = torch.cuda.current_device()\n"
        "def second(x):\n    if not HAVE_TRITON:\n        return 0\n    return x.cuda()\n"
        "def third(x):\n    return x.cuda()\n",
    )
    assert text.count("torch.cuda.current_device()") == 1 and text.count("x.cuda()") == 1
    assert "def third(x):\n    return x.to(torch.accelerator.current_accelerator())" in text


def test_files_of_symmetric_memory_stay(tmp_path: Path) -> None:
    assert after(tmp_path, "def f(x): return x.cuda()\n", "gtp_symmetric_memory.py") == ""


def test_a_question_about_graphs_is_no_capture(tmp_path: Path) -> None:
    text = after(
        tmp_path,
        "def tracker(safe):\n    if safe:\n        assert hasattr(torch.cuda.CUDAGraph, 'register_generator_state')\n"
        "    return torch.cuda.get_rng_state()\n",
    )
    assert "device_module.get_rng_state()" in text and "hasattr(torch.cuda.CUDAGraph" in text


def test_a_tensor_of_a_module_and_one_that_streams_wait_for(tmp_path: Path) -> None:
    text = after(
        tmp_path,
        "from state import module\nfrom triton_ops import launch\n"
        "def test_it():\n    x = module.kept\n    assert x.is_cuda\n"
        "def wait(x, done):\n    if x.is_cuda:\n        done.record(torch.cuda.current_stream(x.device))\n",
    )
    assert text.count('x.device.type in ("cuda", "npu")') == 2


def test_settings_of_bitsandbytes_in_a_dictionary_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import transformers\nkwargs = {}\nkwargs['load_in_8bit'] = True\n")
    assert [finding.code for finding in migrate(tmp_path / "a.py").left] == ["NPK406"]


def test_functions_about_fp8_and_those_that_launch_kernels_stay(tmp_path: Path) -> None:
    text = after(
        tmp_path,
        "import triton\n@triton.jit\ndef _kernel(x): pass\n"
        "def rotate(x):\n    y = torch.empty(4, device='cuda')\n    _kernel[1](x, y)\n"
        "def cast_to_fp8(x):\n    return x.cuda()\ndef other(x):\n    return x.cuda()\n"
        "def test_nccl_ub_enables_symmetric_memory(x):\n    x.cuda()\n",
        "test_it.py",
    )
    assert text == ""  # as it imports triton
    text = after(
        tmp_path,
        "try:\n    import triton\nexcept ImportError:\n    triton = None\n@triton.jit\ndef _kernel(x): pass\n"
        "def rotate(x):\n    y = torch.empty(4, device='cuda')\n    _kernel[1](x, y)\n"
        "def cast_to_fp8(x):\n    return x.cuda()\ndef other(x):\n    return x.cuda()\n",
    )
    assert (
        "device='cuda'" in text
        and text.count("x.cuda()") == 1
        and "def other(x):\n    return x.to(torch.accelerator.current_accelerator())" in text
    )


def test_a_test_named_after_a_library_stays(tmp_path: Path) -> None:
    skips = "import pytest\ndef test_it(x):\n    pytest.importorskip('mamba_ssm')\n    x.cuda()\n"
    assert after(tmp_path, skips, "test_this.py") == ""
    tests = "def test_symmetric_memory(x):\n    x.cuda()\ndef test_without_symmetric_memory(x):\n    x.cuda()\n"
    assert after(tmp_path, tests, "test_it.py").count("x.cuda()") == 1


def test_one_of_two_reductions_alone_is_not_changed(tmp_path: Path) -> None:
    text = (
        "import torch.distributed as dist\ndef gather(old, device):\n"
        "    sums = old if old is not None else torch.zeros(6, dtype=torch.float64)\n"
        "    count = torch.zeros(1, dtype=torch.float64)\n    dist.all_reduce(sums)\n    dist.all_reduce(count)\n"
    )
    assert after(tmp_path, text) == ""


def test_torch_stands_with_the_imports_of_others(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import cv2\n\nfrom ours import x\n\nimport argparse\nimport os\n\n"
        "parser.add_argument('--device', default='cuda')\n"
    )
    (tmp_path / "ours.py").write_text("import torch\n")
    assert migrate(tmp_path).changes[0].after.startswith("import cv2\nimport torch\n\nfrom ours import x\n")


def test_handles_of_streams_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\nlaunch(torch.cuda.current_stream().cuda_stream)\n")
    assert "NPK115" in {finding.code for finding in migrate(tmp_path).left}
    (change,) = migrate(tmp_path, Goal(Style.npu)).changes
    assert "launch(torch.npu.current_stream().npu_stream)" in change.after
