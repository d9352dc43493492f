"""Run the simulated NPU with a different torch_npu version than the installed torch, in a separate environment.

The environment contains that torch and, if the wheels allow the same Python, everything else that the user has: the
user's packages come after its own on the path. A command asked for another torch_npu is restarted with the Python of
that environment, where it finds the torch it needs.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import npukit
from npukit.cache import cache_folder, only_builder
from npukit.errors import NpukitError
from npukit.facts.versions import key
from npukit.report.terminal import say
from npukit.simulate import versions
from npukit.simulate.progress import step

READY = "npukit-ready"  # written last: an environment without it is incomplete
OLDEST_PYTHON = "3.10"  # npukit's own dependencies


def switch_to(torch_npu: str, module: str, arguments: Sequence[str]) -> None:
    """Restart as `python -m module arguments` with this torch_npu version; return if it is the current one.

    >>> switch_to("2.7.1", "npukit", sys.argv[1:])
    """
    version = versions.supported(torch_npu)
    if versions.installed() == version:
        return
    python = environment_python(version)
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    command = [str(python), "-m", module, *arguments]
    sys.stdout.flush()
    os.execve(python, command, {**os.environ, "PATH": path})


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine."""

    path: str
    version: str

    @property
    def is_ours(self) -> bool:
        return self.path == sys.executable


def environment_python(version: str) -> Path:
    """The Python of the environment for this torch version, which is created on first use."""
    base = find_python(versions.pythons(version))
    cache = cache_folder()
    environment = cache / "environments" / f"{version}-python{base.version}"
    if not (environment / READY).exists():
        with only_builder(cache, lambda: say("another process is setting up the simulated NPU; waiting for it.")):
            if not (environment / READY).exists():
                with step(f"Installing torch {version} in an environment of its own"):
                    _make(environment, version, base)
    return environment / "bin" / "python"


def find_python(wanted: Sequence[str]) -> Interpreter:
    """Find a Python of one of these versions: this one, or else the newest on the path.

    >>> find_python(["3.10", "3.11"])
    Interpreter(path='/usr/bin/python3.11', version='3.11')
    """
    usable = sorted((version for version in wanted if key(version) >= key(OLDEST_PYTHON)), key=key, reverse=True)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if ours in usable:
        return Interpreter(sys.executable, ours)
    if python := next(filter(None, map(_on_path, usable)), None):
        return python
    raise NpukitError(
        f"This torch_npu needs Python {' or '.join(usable)}, this is {ours}, and none of them is on the path: "
        f"install one, for example with `uv python install {usable[0]}`."
    )


def _on_path(version: str) -> Interpreter | None:
    """The actual interpreter: a file on the path may be a script that starts one, or reports that there is none."""
    if not (command := shutil.which(f"python{version}")):
        return None
    result = subprocess.run([command, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
    path = result.stdout.strip()
    return Interpreter(path, version) if path else None


def _make(environment: Path, version: str, base: Interpreter) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    _run([base.path, "-m", "venv", "--without-pip", str(environment)], environment)
    wanted = [f"torch=={version}", versions.numpy(version)]
    if not base.is_ours:
        wanted += [
            "pip",
            *(require for require in importlib.metadata.requires("npukit") or [] if "extra ==" not in require),
        ]
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--disable-pip-version-check", "-qq"]
    _run([*pip, *wanted], environment)
    # Only now, because pip must neither count nor remove the user's packages.
    packages = environment / "lib" / f"python{base.version}" / "site-packages"
    if base.is_ours:
        own = Path(npukit.__file__).resolve().parents[1]
        lines = [str(own), *(f"import site; site.addsitedir({folder!r})" for folder in _users_packages())]
        (packages / "npukit-users-packages.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        _link_npukit(packages)
    (environment / READY).touch()


def _users_packages() -> list[str]:
    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _link_npukit(packages: Path) -> None:
    """Link npukit alone for another Python: the packages next to it are compiled for this one."""
    package = Path(npukit.__file__).resolve().parent
    (packages / package.name).symlink_to(package)
    info = importlib.metadata.distribution("npukit").locate_file(f"npukit-{npukit.__version__}.dist-info")
    (packages / Path(str(info)).name).symlink_to(str(info))


def _run(command: list[str], environment: Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_USER": "0"})
    if result.returncode:
        shutil.rmtree(environment, ignore_errors=True)
        last_line = (result.stderr.strip() or result.stdout.strip() or "it said nothing").splitlines()[-1]
        raise NpukitError(f"The environment {environment} could not be made: {last_line}")
