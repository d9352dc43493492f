"""CUDA scripts run unedited on the simulated NPU with --auto, and compute what they compute on the CPU."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples" / "cuda"
STEPS = "10"  # of nanogpt.py
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


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--auto", *map(str, arguments)]
    env = {**os.environ, "STEPS": STEPS}
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def losses(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss ([\d.]+)", output)]


def run_here(script: Path) -> None:
    os.environ["STEPS"], sys.argv = STEPS, [str(script)]
    with script.with_suffix(".txt").open("w") as output, redirect_stdout(output):
        runpy.run_path(str(script), run_name="__main__")


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of each example when its author had written it for the CPU."""
    by_script = {}
    for name, changes in ON_CPU.items():
        text = (EXAMPLES / name).read_text()
        for cuda, cpu in changes.items():
            assert cuda in text
            text = text.replace(cuda, cpu)
        script = tmp_path_factory.mktemp("cpu") / name
        script.write_text(text)
        process = get_context("fork").Process(target=run_here, args=(script,))  # where torch is imported already
        process.start()
        process.join(300)
        by_script[name] = losses(script.with_suffix(".txt").read_text())
        assert len(by_script[name]) >= 2
    return by_script


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
