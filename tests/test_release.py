"""What a release says about itself is the same everywhere; `make release` builds and installs it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import yaml

from npukit import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def test_one_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == __version__


def test_the_pythons_that_are_promised_are_tested_on_both_architectures() -> None:
    job = WORKFLOW["jobs"]["test"]
    matrix = job["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS and PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert {"arm" in runner for runner in matrix["runner"]} == {True, False}
    assert job["steps"][-1]["run"] == ".ci/run"


def test_make_release_installs_with_every_promised_python() -> None:
    script = (ROOT / "scripts" / "release.py").read_text()
    first, last = re.search(r"range\((\d+), (\d+)\)", script).groups()
    assert [f"3.{minor}" for minor in range(int(first), int(last))] == PYTHONS
    steps = WORKFLOW["jobs"]["release"]["steps"]
    assert "scripts/release.py" in steps[-1]["run"] and steps[1]["with"]["python-version"].split() == PYTHONS


def test_every_file_has_the_grammar_of_the_oldest_python() -> None:
    oldest = (3, int(PYTHONS[0].partition(".")[2]))
    for file in (ROOT / "src").rglob("*.py"):
        ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=oldest)
