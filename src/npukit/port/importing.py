"""Import modules, each in a separate process that is forked after torch was loaded.

Run as `python -m npukit.port.importing` in a project's folder. It reads a JSON object from standard input (the files to
import, and the packages to replace by stand-ins) and writes one JSON line per file: [file, outcome, error, the file of
the project in which the error arose, packages].
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from npukit.port import shared, stand_ins

CPU_SECONDS = 30  # CPU seconds; what takes longer does its work during the import
_SECONDS = 120  # seconds by the clock, for one that waits
_MAX_PACKAGES = 30
_FEW = 3  # with fewer files it is quicker to import them one by one


class _Started(NamedTuple):
    file: str
    packages: frozenset[str]
    pipe: int
    deadline: float


def main() -> None:
    given: dict[str, list[str]] = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a module may print, or ask for input
        os.dup2(silence, stream)
    if any(b"torch" in Path(file).read_bytes() for file in given):
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    if len(given) > _FEW:
        shared.load(given)
    waiting = [(file, frozenset(packages)) for file, packages in given.items()]
    running: dict[int, _Started] = {}
    absent: frozenset[str] = frozenset()  # packages that one file lacks, others will lack as well
    while waiting or running:
        while waiting and len(running) < len(os.sched_getaffinity(0)):
            pid, started = _start(*waiting.pop())
            running[pid] = started
        pid = _ended(running)
        file, packages, pipe, _ = running.pop(pid)
        with os.fdopen(pipe) as answer:
            outcome, error, missing, origin = json.loads(answer.read() or '["runs", "", "", ""]')
        if missing and missing not in packages and len(packages) < _MAX_PACKAGES:
            absent |= {missing}
            waiting.append((file, packages | absent))
        else:
            print(json.dumps([file, outcome, error, origin, sorted(packages)]), file=answers)


def _start(file: str, packages: frozenset[str]) -> tuple[int, _Started]:
    if "triton" in packages:
        _load_compiler()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        outcome = json.dumps(_try(file, packages))
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    return pid, _Started(file, packages, reading, time.monotonic() + _SECONDS)


@functools.cache
def _load_compiler() -> None:
    """Load torch's compiler before stand-ins are installed, because it would mistake one for the real Triton."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._inductor.compile_fx")


def _ended(running: dict[int, _Started]) -> int:
    """Wait for a process, and kill it if it takes too long."""
    while True:
        for pid, started in running.items():
            if os.waitpid(pid, os.WNOHANG)[0]:
                return pid
            if time.monotonic() > started.deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return pid
        time.sleep(0.01)


def _try(file: str, packages: frozenset[str]) -> tuple[str, str, str, str]:
    """The outcome of importing a file: imports, fails or exits; the error; the missing package; the error's origin."""
    if packages:
        stand_ins.install(packages)
    sys.argv = [file]
    try:
        _import(Path(file))
    except SystemExit as error:
        return "exits", str(error), "", ""
    except BaseException as error:
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        return "fails", f"{type(error).__name__}: {error}"[:500], _to_stand_in_for(missing, file), _origin(error)
    return "imports", "", "", ""


def _origin(error: BaseException) -> str:
    """The last file of the project that an error passed through."""
    here = f"{Path.cwd()}{os.sep}"
    places = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append(error.filename)
    return next((place.removeprefix(here) for place in reversed(places) if place.startswith(here)), "")


def _import(file: Path) -> None:
    """Import a file under the name that it has in its project, starting from its outermost package."""
    folder, parts = file.parent, [file.stem]
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
        if folder == folder.parent:
            break
    sys.path[:0] = [str(Path(fromkey).absolute()) for fromkey in dict.fromkeys([folder, Path(), Path("src")])]
    try:
        _import_as(parts, file)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        # Its package lies in a folder without __init__.py, so it is named relative to the project's root.
        _import_as([part for part in file.with_suffix("").parts if part != "src"], file)


def _import_as(parts: list[str], file: Path) -> None:
    """Import a file as the module of this name, or as a script if the name has only one part."""
    if len(parts) > 1:
        importlib.import_module(".".join(parts[:-1] if file.stem == "__init__" else parts))
        return
    spec = importlib.util.spec_from_file_location(file.stem, file.absolute())
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _to_stand_in_for(missing: str, file: str) -> str:
    """The missing package to replace by a stand-in. Of the project's own packages, only what its build would generate
    is replaced, and nothing of an installed package is: torch._six is missing because torch has removed it.

    >>> _to_stand_in_for("mmcv.ops", "train.py"), _to_stand_in_for("torch._six", "train.py")
    ('mmcv', '')
    """
    top, _, below = missing.partition(".")
    folders = [Path(), Path("src"), *Path(file).parents]
    if any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders):
        return missing if below else ""  # the project's own package, imported relative to the wrong folder
    installed = importlib.util.find_spec(top) if below else None
    if installed is None:
        return top
    return "" if installed.loader else missing  # google, a namespace shared by several packages


if __name__ == "__main__":
    main()
