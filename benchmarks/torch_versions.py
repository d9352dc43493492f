"""The simulated NPU with every torch and torch_npu that it supports, on this machine.

    python benchmarks/torch_versions.py [VERSION...] [--environments FOLDER]

For each version: an environment with that torch (kept in FOLDER, a cache folder unless given), the torch_npu that
belongs to it, set up as a user's first run does it; then a GPT-2 trained on two simulated cards under DDP, and
tests/on_npu. PyPI's torch is a CPU build on some machines and a CUDA build of gigabytes on others; both are used as
they come.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from npukit.cache import cache_folder
from npukit.simulate.versions import TESTED

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("pytest", "hypothesis", "transformers", "pydantic", "llguidance", "safetensors")
VERSIONS = """
import torch
from npukit.simulate.info import information
print(torch.__version__, information().parts[0].version, sep=", torch_npu ")
"""


def environment(version: str, folder: Path) -> Path:
    """The Python of an environment with this torch."""
    python = folder / version / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / version)], check=True)
        numpy = "numpy<2" if version.split(".")[1] in "1234" else "numpy"
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "-qq",
            "--disable-pip-version-check",
            f"torch=={version}",
            numpy,
        ]
        subprocess.run([*install, *NEEDED, "--editable", str(ROOT)], check=True)
    return python


def run(python: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command of this environment."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(python), *arguments]
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=1800)
    return result.returncode, result.stdout + result.stderr


def trained(python: Path) -> str:
    """The loss of a GPT-2 after 20 steps on two cards, or the last line of what went wrong."""
    options = ["--device", "sim", "--devices", "2", "examples/gpt2/train.py", "--steps", "20"]
    code, said = run(python, "-m", "npukit", "run", *options, "--out", "/tmp/npukit-torch-versions")
    losses = re.findall(r"loss[ =:]+([\d.]+)", said)
    return losses[-1] if not code and losses else said.strip().splitlines()[-1][:100]


def tested(python: Path) -> tuple[str, list[str]]:
    """How many tests passed and failed, and which failed."""
    options = ["--npu-sim=2", "tests/on_npu", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    _, said = run(python, "-m", "pytest", *options)
    counts = re.search(r"^.*\d+ (passed|failed|error).*$", said, re.MULTILINE)
    return counts[0] if counts else said.strip().splitlines()[-1][:100], re.findall(
        r"^(?:FAILED|ERROR) (.*)$", said, re.MULTILINE
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*", default=list(TESTED))
    parser.add_argument("--environments", type=Path, default=cache_folder() / "torch_versions")
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, {datetime.date.today()}")
    for version in options.versions:
        python = environment(version, options.environments)
        code, said = run(python, "-m", "npukit", "sim", "setup")
        if code:
            print(f"torch {version}: {said.strip().splitlines()[-1]}", flush=True)
            continue
        print(f"torch {run(python, '-c', VERSIONS)[1].strip()}", flush=True)
        print(f"  GPT-2, two cards: {trained(python)}", flush=True)
        counts, failed = tested(python)
        print(f"  tests/on_npu: {counts}", *failed, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
