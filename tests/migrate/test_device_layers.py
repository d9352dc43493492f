"""Code that imports a framework's own word for the device goes on to use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.migrate.migration import migrate

COLOSSALAI = "import torch\nfrom colossalai.accelerator import get_accelerator\n"


def after(tmp_path: Path, text: str) -> str:
    (tmp_path / "a.py").write_text(text)
    return migrate(tmp_path / "a.py").changes[0].after


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x.cuda()", "x.to(get_accelerator().get_current_device())"),
        ("x.cuda(rank)", "x.to(rank)"),
        ("torch.zeros(1, device='cuda')", "torch.zeros(1, device=get_accelerator().get_current_device())"),
        ("torch.cuda.synchronize()", "get_accelerator().synchronize()"),
        (
            "torch.distributed.init_process_group('nccl')",
            "torch.distributed.init_process_group(get_accelerator().communication_backend)",
        ),
    ],
)
def test_a_file_of_colossalai_has_one_word_for_the_device(tmp_path: Path, line: str, expected: str) -> None:
    assert after(tmp_path, f"{COLOSSALAI}def f(x, rank):\n    {line}\n") == (
        f"{COLOSSALAI}def f(x, rank):\n    {expected}\n"
    )


def test_other_frameworks_and_other_names(tmp_path: Path) -> None:
    deepspeed = "import torch\nfrom deepspeed.accelerator import get_accelerator as here\ndef f(x):\n    x.cuda()\n"
    assert "x.to(here().current_device_name())" in after(tmp_path, deepspeed)
    verl = "import torch\nfrom verl.utils.device import get_torch_device\ndef f():\n    torch.cuda.synchronize()\n"
    assert "get_torch_device().synchronize()" in after(tmp_path, verl)


def test_what_is_asked_at_import_or_would_mean_something_else_stays_with_the_constants(tmp_path: Path) -> None:
    text = after(
        tmp_path,
        f"{COLOSSALAI}WHERE = torch.device('cuda')\ndef f(x, device='cuda'):\n"
        "    torch.cuda.empty_cache()\n    return x.to(device) if torch.cuda.is_available() else x\n",
    )
    assert "else torch.cuda).empty_cache()" in text  # which does nothing on a CPU, where colossalai's raises
    assert "WHERE = torch.device(torch.acc" in text and "else 'cuda'):" in text and "torch.accelerator.is_avail" in text


def test_what_the_file_asks_its_framework_for_is_asked_there(tmp_path: Path) -> None:
    text = f"{COLOSSALAI}def f():\n    get_accelerator().empty_cache()\n    torch.cuda.empty_cache()\n"
    assert after(tmp_path, text).count("get_accelerator().empty_cache()") == 2


@pytest.mark.parametrize(
    "around",
    ["    if args.cuda:\n        x.cuda()\n    {}\n", "    {}\ndef g(x):\n    x.cuda()\n", "    {}\n    y = x.cpu()\n"],
)
def test_code_that_may_run_on_the_cpu_does_not(tmp_path: Path, around: str) -> None:
    text = after(tmp_path, f"{COLOSSALAI}def f(x):\n{around.format('torch.cuda.empty_cache()')}")
    assert "else torch.cuda).empty_cache()" in text


def test_a_stream_is_made_by_the_framework_and_its_type_is_not(tmp_path: Path) -> None:
    text = f"{COLOSSALAI}def f(x):\n    assert isinstance(x, torch.cuda.Stream)\n    return torch.cuda.Stream()\n"
    changed = after(tmp_path, text)
    assert "(x, torch.Stream)" in changed and "return get_accelerator().Stream()" in changed


def test_a_function_has_one_word_for_the_device_where_the_framework_has_not_all(tmp_path: Path) -> None:
    text = f"{COLOSSALAI}def f(x):\n    torch.cuda.empty_cache()\n    return x.cuda(), torch.cuda.mem_get_info()\n"
    assert "    device_module.empty_cache()\n" in after(tmp_path, text)


def test_a_backend_that_the_function_sets_anew_stays(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("from .start import launch, launch_twice, really\n")
    (package / "start.py").write_text(
        "import torch.distributed as dist\nfrom pkg.device import best\n"
        'def launch(rank, backend="nccl"):\n    backend = best()\n    dist.init_process_group(backend, rank=rank)\n'
        'def launch_twice(backend="nccl"):\n    launch(0, backend=backend)\n    launch(1, backend)\n'
        'def really(backend="nccl"):\n    dist.init_process_group(backend)\n    backend = best()\n'
    )
    (tmp_path / "run.py").write_text(
        'import torch\nimport pkg\nfrom pkg import launch\nlaunch(0, backend="nccl")\nlaunch(0, "nccl")\n'
        'pkg.launch_twice(backend="nccl")\npkg.really(backend="nccl")\n'
    )
    changed = {change.path.name: change.after for change in migrate(tmp_path).changes}
    assert changed["start.py"].count("hccl") == 1
    assert changed["run.py"].count('"nccl"') == 4
    assert 'pkg.really(backend="hccl" if' in changed["run.py"]
