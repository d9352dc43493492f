"""The GitHub action: what it passes on is what its script reads."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from npukit.simulate import versions

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEP = next(step for step in ACTION["runs"]["steps"] if "run" in step)
SCRIPT = ROOT / "scripts" / "ci_setup.sh"


def test_it_runs_a_script_of_this_repository() -> None:
    assert f"$GITHUB_ACTION_PATH/{SCRIPT.relative_to(ROOT)}" in STEP["run"]
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0


def test_every_input_reaches_the_script() -> None:
    passed = {re.search(r"inputs\.(\w+)", value)[1] for value in STEP["env"].values()}
    assert passed == set(ACTION["inputs"])
    assert all(name in SCRIPT.read_text() for name in STEP["env"])


def test_one_torch_is_advised_everywhere() -> None:
    """The versions differ only on a Python that has no torch_npu for the newest."""
    pages = (ROOT / "docs" / "guides" / "ci.md", ROOT / "docs" / "guides" / "ci.zh.md")
    matches = re.findall(r"(?:torch|TORCH)\"?: \"([\d.]+)\"", "".join(page.read_text() for page in pages))
    matches += re.findall(r"^(?:ARG )?TORCH\s*:?=\s*([\d.]+)", (ROOT / "Dockerfile").read_text(), re.M)
    matches += re.findall(r"^TORCH\s*:?=\s*([\d.]+)", (ROOT / "Makefile").read_text(), re.M)
    assert len(matches) == 6
    assert {*matches, ACTION["inputs"]["torch"]["default"]} == {versions.advised((3, 11))}
