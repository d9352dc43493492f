"""Import modules, each in a process of its own that is forked after torch was loaded.

Run as `python -m npukit.port.importing`, in the folder of a project. It reads a JSON object from standard input, the
files to import with the packages to stand in for, and writes a JSON line for each: [file, outcome, error, the file of
the project where it arose, packages].
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

CPU_SECONDS = 30  # what takes longer is no import but a run
_SECONDS = 120  # for one that waits
_MAX_PACKAGES = 30
_FEW = 3  # files: fewer are imported sooner one by one


class _Started(NamedTuple):
    file: str
    packages: frozenset[str]
    pipe: int
    deadline: float


def main() -> None:
    given: dict[str, list[str]] = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a module may print, and ask
        os.dup2(silence, stream)
    if any(b"torch" in Path(file).read_bytes() for file in given):
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    if len(given) > _FEW:
        shared.load(given)
    waiting = [(file, frozenset(packages)) for file, packages in given.items()]
    running: dict[int, _Started] = {}
    absent: frozenset[str] = frozenset()  # what one file needs and is not there, others need as well
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
    """Load torch's compiler while Triton is not there: it would take a stand-in for the real one."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._inductor.compile_fx")


def _ended(running: dict[int, _Started]) -> int:
    """A process that has ended; those that take too long are ended."""
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
    """How the import of a file ends: it imports, fails or exits; the error; the package that is missing; the origin."""
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
    """Import a file by the name that it has in its project: of the outermost package that it is in."""
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
        # Its package is part of one that has no __init__.py: it is named from where the project begins.
        _import_as([part for part in file.with_suffix("").parts if part != "src"], file)


def _import_as(parts: list[str], file: Path) -> None:
    """Import a file as the module of this name, or as a script where the name has one part."""
    if len(parts) > 1:
        importlib.import_module(".".join(parts[:-1] if file.stem == "__init__" else parts))
        return
    spec = importlib.util.spec_from_file_location(file.stem, file.absolute())
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _to_stand_in_for(missing: str, file: str) -> str:
    """The package that a missing module belongs to; of the project's own packages only what its build would make, and
    nothing of a package that is installed: torch._six is missing because torch has removed it.

    >>> _to_stand_in_for("mmcv.ops", "train.py"), _to_stand_in_for("torch._six", "train.py")
    ('mmcv', '')
    """
    top, _, below = missing.partition(".")
    folders = [Path(), Path("src"), *Path(file).parents]
    if any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders):
        return missing if below else ""  # the project's own package, looked for in the wrong place
    installed = importlib.util.find_spec(top) if below else None
    if installed is None:
        return top
    return "" if installed.loader else missing  # google, which several packages share


if __name__ == "__main__":
    main()
