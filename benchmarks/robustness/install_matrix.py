"""Install npukit's base, and base with each extra, into clean environments, and use every verb in each.

    python -m benchmarks install_matrix [--extra base sim ...] [--torch 2.13.0]

The uses are those of tests/test_install.py, which tries them where what an extra does not bring is blocked; here pip
installs npukit's wheel with what its metadata asks for, in the newest versions. A use must work where its extra is
installed; elsewhere it may work, or must say in one line which extra to install. The environments are under /tmp, one
at a time, and are removed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from benchmarks import ROOT
from benchmarks.tiny_server import make_model
from tests.test_install import EVERY, EXTRAS, USES, Use, show_every_help, write_places

NEEDS_TORCH = [name for name, wanted in EXTRAS.items() if any(word.startswith("torch>") for word in wanted)]
WORKS, NAMES_EXTRA, FAILS = "works", "names the extra", "FAILS"


def pip(python: Path, *arguments: str) -> None:
    """pip of an environment, quiet unless it fails."""
    result = subprocess.run([str(python), "-m", "pip", *arguments], capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stdout + result.stderr)


def install(folder: Path, wheel: Path, extra: str, torch: str) -> Path:
    """A new environment with npukit and one extra; torch first, as on a machine that has one."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    if extra in NEEDS_TORCH:
        pip(python, "install", "-q", f"torch=={torch}")
    pip(python, "install", "-q", str(wheel) + ("" if extra == "base" else f"[{extra}]"))
    return python


def outcome(use: Use, extra: str, python: Path, places: dict[str, object]) -> tuple[str, str]:
    """How a use went, and what it said."""
    result = use.run(python, places)
    output = result.stdout + result.stderr
    if result.returncode in use.codes and "Traceback" not in output:
        return WORKS, output
    named = re.findall(r"pip install 'npukit\[(\w+)\]", result.stderr)
    may_lack = use.works_with not in ("base", extra)
    if may_lack and result.returncode == 2 and named and len(result.stderr.splitlines()) == 1:
        return NAMES_EXTRA, output
    return FAILS, output


def try_extra(extra: str, folder: Path, wheel: Path, torch: str, model: Path) -> dict[str, str]:
    """The outcome of every verb's help and of every use."""
    began = time.monotonic()
    python = install(folder / "environment", wheel, extra, torch)
    print(f"{extra}: installed in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    (folder / "user").mkdir()
    places = write_places(folder / "user", model)
    helped = show_every_help(python)
    whole = helped.returncode == 0 and helped.stdout.count("Usage: npukit") == len(EVERY)
    outcomes = {f"`--help` of all {len(EVERY)} verbs": WORKS if whole else FAILS}
    if not whole:
        print(helped.stderr, file=sys.stderr)
    for use in USES:
        went, output = outcome(use, extra, python, places)
        outcomes[f"`{use.verb} {shown(use)}`".replace(" `", "`")] = went
        for line in output.splitlines():
            if went == FAILS or "Warning" in line:
                print(f"{extra}: {use.verb}: {line}", file=sys.stderr, flush=True)
    return outcomes


def shown(use: Use) -> str:
    return re.sub(r"\{folder\}/|[{}]", "", use.words)


def main(extra: Annotated[tuple[str, ...], ["base", *EXTRAS]] = ("base", *EXTRAS), torch: str = "2.13.0") -> None:
    table: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="install-matrix-") as temporary:
        folder = Path(temporary)
        os.chdir(folder)  # `launch` writes its logs there
        os.environ["NPUKIT_CACHE"] = str(folder / "cache")  # the simulated NPU is set up anew, too
        model = make_model(folder / "model")
        pip(Path(sys.executable), "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT))
        wheel = next(folder.glob("npukit-*.whl"))
        for name in extra:
            with tempfile.TemporaryDirectory(prefix=f"install-{name}-") as place:
                table[name] = try_extra(name, Path(place), wheel, torch, model)
    print(f"| use | {' | '.join(table)} |\n|---{'|---' * len(table)}|")
    for use in table[extra[0]]:
        print(f"| {use} | {' | '.join(outcomes[use] for outcomes in table.values())} |")
    sys.exit(any(FAILS in outcomes.values() for outcomes in table.values()))
