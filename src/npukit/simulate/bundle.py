"""Pack everything that the simulated NPU needs on a machine without network into one file.

It contains the wheels of npukit and its dependencies, and the part of the cache for this torch and this Python. It does
not contain torch, which the other machine must have.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from npukit.errors import NpukitError
from npukit.report.writing import whole_file
from npukit.simulate import build
from npukit.simulate.progress import step

FOLDER = "npukit-sim"


@dataclass(frozen=True)
class Bundle:
    """A packed simulated NPU, and what the machine that unpacks it must have."""

    file: str
    size: int  # bytes
    torch: str
    python: str
    architecture: str


def pack(file: Path) -> Bundle:
    """Set up the simulated NPU if necessary, and write it to a tar file.

    >>> pack(Path("npukit-sim.tar")).torch
    '2.13.0+cpu'
    """
    setup = build.ensure()
    with tempfile.TemporaryDirectory() as wheels, whole_file(file) as beside:
        with step("Collecting npukit and the packages it needs"):
            _collect_wheels(Path(wheels))
        with step(f"Writing {file}"), tarfile.open(beside, "w") as archive:
            archive.add(wheels, f"{FOLDER}/wheels")
            for part in (setup.torch_npu, setup.home, setup.operators):
                archive.add(part, f"{FOLDER}/cache/{part.relative_to(setup.cache)}")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Bundle(str(file), file.stat().st_size, setup.torch_version, python, platform.machine())


def _collect_wheels(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--disable-pip-version-check", "-w", str(folder), _npukit()]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_USER": "0"})
    if result.returncode:
        last_line = (result.stderr.strip() or "it said nothing").splitlines()[-1]
        raise NpukitError(f"pip could not collect the wheels of npukit and its dependencies: {last_line}")


def _npukit() -> str:
    """What pip can build npukit's wheel from: the folder or wheel it was installed from, or else a package index."""
    origin = importlib.metadata.distribution("npukit").read_text("direct_url.json")
    path = unquote(urlparse(json.loads(origin)["url"]).path) if origin else ""
    return path if path and Path(path).exists() else f"npukit=={importlib.metadata.version('npukit')}"
