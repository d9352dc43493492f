"""Run every command of our own guides, those that take minutes as well, and compare what it prints with the page.

    python -m benchmarks our_guides [--only PAGE]

The suite runs the quick ones (tests/test_guides.py); this runs all but those for which a guide says why they cannot
be run: they need a card, a second machine, or install packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

from benchmarks import ROOT


def main(only: Annotated[str, "pages with this in their name"] = "") -> None:
    variables = {**os.environ, "NPUKIT_ALL_GUIDES": "1"}
    chosen = f"commands_print{f' and {only}' if only else ''}"
    tests = [sys.executable, "-m", "pytest", "-v", "--no-header", "--tb=short", "tests/test_guides.py", "-k", chosen]
    code = subprocess.run(tests, cwd=ROOT, env=variables).returncode
    subprocess.run([sys.executable, "-m", "tests.test_guides"], cwd=ROOT, check=True)
    sys.exit(code)
