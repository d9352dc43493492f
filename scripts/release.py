"""Check that npukit can be released: build it, and install what was built in clean environments.

    python scripts/release.py [--output dist] [--pythons python3.10 python3.13 ...]
    python scripts/release.py --wheel dist/npukit-0.1.0-py3-none-any.whl

It builds the sdist, builds the wheel from it twice and compares both byte by byte, runs `twine check`, and installs the
wheel for every Python of 3.10 to 3.13 that is on the path. It publishes nothing. With --wheel it only installs, and
needs nothing but Python. With pyenv, PYENV_VERSION=3.11.7:3.10.13:3.12.1 puts several on the path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = tuple(f"python3.{minor}" for minor in range(10, 14))
# A first use in a bare install: neither torch nor a card is there.
USES = (
    ["--version"],
    ["--help"],
    ["analyze", "examples/cuda_project"],
    ["migrate", "examples/cuda_project", "--diff"],
    ["explain", "507018"],
    ["docs", "install"],
    ["skill"],
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS)
    parser.add_argument("--wheel", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="npukit-release-") as folder:
        wheel = options.wheel or built(options.output, Path(folder))
        found = [python for python in options.pythons if works(python)]
        for python in found:
            try_install(python, wheel.resolve(), Path(folder) / Path(python).name)
    missing = [python for python in options.pythons if python not in found]
    print(f"Installed with {', '.join(found) or 'no Python'}; not found: {', '.join(missing) or 'none'}.")
    sys.exit(0 if found else "No Python to install with.")


def works(python: str) -> bool:
    """Whether there is such a Python: pyenv has commands for those that it does not start, too."""
    return bool(shutil.which(python)) and not subprocess.run([python, "-c", ""], capture_output=True).returncode


def built(output: Path, folder: Path) -> Path:
    """The wheel, which comes out the same each time it is built from the sdist."""
    shutil.rmtree(output, ignore_errors=True)
    run([sys.executable, "-m", "build", "--sdist", "--outdir", str(output), str(ROOT)])
    (sdist,) = output.glob("*.tar.gz")
    wheels = []
    for name in ("first", "second"):
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / name, filter="data")
        (source,) = (folder / name).iterdir()
        run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / f"{name}-wheel"), str(source)])
        wheels += (folder / f"{name}-wheel").glob("*.whl")
    first, second = wheels
    if first.read_bytes() != second.read_bytes():
        sys.exit(f"The sdist does not build the same wheel twice: compare {first.name} of two builds.")
    print(f"The sdist builds the same {first.name} twice ({first.stat().st_size / 2**20:.1f} MiB).")
    wheel = Path(shutil.copy(first, output))
    run([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    return wheel


def try_install(python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel in a new environment of this Python, and use it."""
    run([python, "-m", "venv", str(folder)])
    run([str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", str(wheel)])
    run(
        [str(folder / "bin" / "python"), "-m", "compileall", "-q", *map(str, folder.glob("lib/*/site-packages/npukit"))]
    )
    for words in USES:
        run([str(folder / "bin" / "npukit"), *words])
    print(f"{python}: installed, {len(USES)} commands used.")


def run(command: list[str]) -> None:
    """Run a command; one that fails, or says something on stderr that looks like a crash, ends the release."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode or "Traceback" in done.stderr:
        sys.exit(
            f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )


if __name__ == "__main__":
    main()
