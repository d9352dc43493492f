"""Download the torch_npu wheel for the installed torch into a private folder.

It is private because torch automatically loads every installed device backend: in an ordinary environment, torch_npu
breaks `import torch` on machines without CANN.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from npukit.errors import NpukitError
from npukit.simulate.versions import pythons, requirement


def install(torch_version: str, folder: Path, *options: str) -> None:
    """Install the newest torch_npu for this torch into `folder`, and nothing else."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--compile", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--target", str(folder), *options, requirement(torch_version)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_USER": "0"})
    if result.returncode:
        raise NpukitError(explain_failure(result.stdout + result.stderr, torch_version))


def explain_failure(output: str, torch_version: str) -> str:
    """Explain in one sentence why pip could not install torch_npu, from pip's output."""
    if "No module named pip" in output:
        return f"{sys.executable} has no pip to download torch_npu with: run `{sys.executable} -m ensurepip` first."
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    known = pythons(torch_version)
    # If pip cannot reach an index, it reports that there are no versions.
    if "(from versions: none)" in output and python in known:
        return (
            "torch_npu could not be downloaded because the package index does not answer: "
            "connect once, or set PIP_INDEX_URL to a mirror that you can reach."
        )
    if "No matching distribution" in output:
        return f"There is no torch_npu for torch {torch_version} on Python {python}: use Python {', '.join(known)}."
    last_line = (output.strip().splitlines() or ["it said nothing"])[-1]
    return f"pip could not install torch_npu for torch {torch_version}: {last_line}"
