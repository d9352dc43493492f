"""CUDA scripts run unedited on the simulated NPU with --auto, and compute what they compute on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples" / "cuda"
ON_CPU = {
    "mnist.py": {
        "torch.cuda.is_available()": "True",
        ".cuda(non_blocking=True)": "",
        ".cuda()": "",
        '"cuda:0"': '"cpu"',
        '"cuda"': '"cpu"',
        "torch.cuda.FloatTensor": "torch.FloatTensor",
        " and found.is_cuda": "",
        "torch.cuda.synchronize()": "",
    },
    "nanogpt.py": {'device = "cuda"': 'device = "cpu"'},
}


def run(*arguments: object, auto: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    way = ["-m", "npukit", "run", "--device", "sim", "--auto"] if auto else []
    command = [sys.executable, *way, *map(str, arguments)]
    env = {**os.environ, **variables}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def losses(said: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss ([\d.]+)", said)]


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of each example when its author had written it for the CPU."""
    found = {}
    for name, changes in ON_CPU.items():
        text = (EXAMPLES / name).read_text()
        for cuda, cpu in changes.items():
            assert cuda in text
            text = text.replace(cuda, cpu)
        script = tmp_path_factory.mktemp("cpu") / name
        script.write_text(text)
        found[name] = losses(run(script, auto=False).stdout)
        assert len(found[name]) >= 2
    return found


@pytest.mark.parametrize(("name", "options"), [("mnist.py", []), ("nanogpt.py", ["--devices", 2])])
def test_examples_give_the_cpus_loss(name: str, options: list[object], on_cpu: dict[str, list[float]]) -> None:
    before = (EXAMPLES / name).read_text()
    result = run(*options, EXAMPLES / name)
    assert losses(result.stdout) == pytest.approx(on_cpu[name], abs=2e-4)
    assert (EXAMPLES / name).read_text() == before
    assert result.stderr.count("npukit --auto replaced") == 1
    assert re.search(r"\d+  \"cuda\" as a device", result.stderr)
    assert not options or re.search(r"1  nccl as a backend", result.stderr)


def test_what_scripts_say_to_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
    torch.save(torch.ones(3), tmp_path / "gpu_cuda.pt")
    result = run(Path(__file__).with_name("cuda_habits.py"), tmp_path)
    assert result.stdout == "all as on a GPU\n"
    for what in ("CUDA_VISIBLE_DEVICES, as", "apex.amp", "DataParallel", "saved from a GPU", ".type("):
        assert what in result.stderr
