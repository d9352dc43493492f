"""The simulated NPU with every torch and torch_npu that it supports, on this machine.

    python benchmarks/torch_versions.py [VERSION...] [--tests PATH...]

For each version, in the environment that `--torch-npu VERSION` makes: set-up as at a user's first run, version_check.py
on two simulated cards (DDP against the CPU, transformers' Trainer), and npukit's own tests that run on simulated NPUs.
Prints a row of a Markdown table for each. PyPI's torch is a CPU build on some machines and a CUDA build of gigabytes on
others; both are used as they come.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from npukit.simulate.versions import TESTED

ROOT = Path(__file__).resolve().parents[1]
NPUKIT = [sys.executable, "-m", "npukit"]


def run(*command: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=1800)
    except subprocess.TimeoutExpired:
        return 124, "no end after 1800 s"
    return result.returncode, result.stdout + result.stderr


def last_line(text: str) -> str:
    """The end of what went wrong, short enough for a table."""
    return (text.strip().splitlines() or [""])[-1][:120]


def checked(version: str) -> tuple[str, str]:
    """What version_check.py found: DDP's difference from the CPU, and how the Trainer did."""
    options = ["--device", "sim", "--devices", "2", "--torch-npu", version]
    code, said = run(*NPUKIT, "run", *options, "benchmarks/version_check.py")
    found = dict(re.findall(r"^(DDP|Trainer): (.*)$", said, re.MULTILINE))
    return found.get("DDP", last_line(said)), found.get("Trainer", f"failed: {last_line(said)}" if code else "")


def tested(version: str, tests: list[str]) -> tuple[str, list[str]]:
    """How many tests passed and failed, and which failed."""
    options = [
        "--npu-sim=2",
        "--npu-sim-torch-npu",
        version,
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    _, said = run(sys.executable, "-m", "pytest", *options, *tests)
    counts = re.search(r"^(.*\d+ (?:passed|failed|error).*?)(?: in [\d.]+s.*)?$", said, re.MULTILINE)
    return counts[1] if counts else last_line(said), re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)


def torch_npu_version(version: str) -> str:
    """The post-release that was installed."""
    code, said = run(*NPUKIT, "sim", "info", "--json", "--torch-npu", version)
    found = re.search(r'"name": "torch_npu",\s*"version": "([^"]+)"', said)
    return found[1] if found and not code else last_line(said)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*", default=list(TESTED))
    parser.add_argument("--tests", nargs="+", default=["tests/on_npu"])
    options = parser.parse_args()
    print(
        f"{platform.machine()}, Python {platform.python_version()}, {datetime.date.today()}; {' '.join(options.tests)}"
    )
    print("| torch_npu | set-up | DDP on two cards, difference from the CPU | Trainer | tests |\n|---|---|---|---|---|")
    failures: dict[str, list[str]] = {}
    for version in options.versions:
        began = time.monotonic()
        code, said = run(*NPUKIT, "sim", "setup", "--torch-npu", version)
        if code:
            print(f"| {version} | {last_line(said)} | | | |", flush=True)
            continue
        setup = f"{time.monotonic() - began:.0f} s"
        ddp, trainer = checked(version)
        counts, failures[version] = tested(version, options.tests)
        print(f"| {torch_npu_version(version)} | {setup} | {ddp} | {trainer} | {counts} |", flush=True)
    for version, failed in failures.items():
        for name in failed:
            print(f"{version}: {name}")


if __name__ == "__main__":
    main()
