"""Packages that this installation lacks: one sentence says which of npukit's extras brings them."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from npukit.errors import NpukitError

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<version>[^;]*)(?:;.*extra == ['\"](?P<extra>\w+)['\"])?")
AT_LEAST = re.compile(r">=([\d.]+)")
FOR_DEVELOPERS = "dev"


def require(*packages: str, extra: str = "") -> None:
    """Refuse to begin unless these packages are installed, in the versions that npukit needs.

    >>> require("torch", "peft", extra="train")
    npukit: This needs peft, which is not installed: pip install 'npukit[train]'.
    """
    if missing := [package for package in packages if not is_installed(package)]:
        raise not_installed(missing, extra)
    for package in packages:
        requirement = next((brought[package] for brought in extras().values() if package in brought), "")
        if (least := AT_LEAST.match(requirement)) and _numbers(version := _version(package)) < _numbers(least[1]):
            command = _command([package], extra)
            needs = f"This needs {package}{requirement}, and {version} is installed"
            raise NpukitError(f"{needs}: {command}.", code="missing_package", remedy=command)


def missing_package(error: Exception, extra: str = "") -> NpukitError | None:
    """The sentence for an import of npukit's own that found no package, or of a script's that found no torch.

    None for every other error.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    if package != "torch" and not _imported_by_npukit(error):
        return None
    return None if package in sys.modules or is_installed(package) else not_installed([package], extra)


def not_installed(packages: Sequence[str], extra: str = "") -> NpukitError:
    """What to do about these packages; `extra` is the one to name where it brings them."""
    are = "which is" if len(packages) == 1 else "which are"
    *first, last = packages
    names = f"{', '.join(first)} and {last}" if first else last
    command = _command(packages, extra)
    return NpukitError(f"This needs {names}, {are} not installed: {command}.", code="missing_package", remedy=command)


@functools.cache
def extras() -> dict[str, dict[str, str]]:
    """The packages that each extra brings, by their import names, with the versions that it asks for.

    >>> extras()["sim"]
    {'numpy': '', 'torch': '>=2.1'}
    """
    requirements: dict[str, dict[str, str]] = {}
    try:
        lines = importlib.metadata.requires("npukit") or ()
    except importlib.metadata.PackageNotFoundError:  # sources on PYTHONPATH, which were never installed
        return requirements
    for line in lines:
        requirement = REQUIREMENT.match(line)
        if requirement and requirement["extra"] not in (None, FOR_DEVELOPERS):
            name = requirement["name"].lower().replace("-", "_")
            requirements.setdefault(requirement["extra"], {})[name] = requirement["version"].strip()
    return requirements


def _command(packages: Sequence[str], extra: str) -> str:
    names: list[str] = []
    for package in packages:
        bringing = [extra for extra, brought in extras().items() if package in brought]
        chosen = extra if extra in bringing else min(bringing, key=lambda name: len(extras()[name]), default="")
        names.append(f"'npukit[{chosen}]'" if chosen else package.replace("_", "-"))
    return f"pip install {' '.join(dict.fromkeys(names))}"


def _imported_by_npukit(error: Exception) -> bool:
    """Whether the innermost file of the traceback is ours; Python's import machinery does not count."""
    trace, last = error.__traceback__, ""
    while trace:
        name = trace.tb_frame.f_code.co_filename
        last = last if name.startswith("<frozen importlib") else name
        trace = trace.tb_next
    return Path(last).is_relative_to(Path(__file__).parent)


def is_installed(package: str) -> bool:
    """Whether a package can be imported, by the name that it is imported by."""
    return sys.modules.get(package) is not None or importlib.util.find_spec(package) is not None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3]) or (sys.maxsize,)
