"""A folder of things built once: each is complete or absent, whoever builds at the same time or is killed meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from npukit.errors import NpukitError
from npukit.report.unfinished import remove_unfinished
from npukit.report.writing import whole_folder


def cache_folder() -> Path:
    """Where npukit keeps what it builds: $NPUKIT_CACHE, else npukit in the user's cache folder."""
    if chosen := os.environ.get("NPUKIT_CACHE"):
        folder = Path(chosen).absolute()
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npukit"
    _check_that_no_stranger_fills(folder)
    return folder


def _check_that_no_stranger_fills(folder: Path) -> None:
    """Libraries are loaded from the cache: whoever can write to it runs code as whoever uses it."""
    try:
        status, parent = folder.stat(), folder.parent.stat()
    except OSError:  # not there yet, or not for us to see: making it will tell
        return
    made_by_stranger = status.st_uid not in (0, os.geteuid()) and parent.st_mode & stat.S_IWOTH
    if status.st_mode & stat.S_IWOTH or made_by_stranger:
        raise NpukitError(
            f"Other users of this machine can put code into {folder}: set NPUKIT_CACHE to a folder that only you, or "
            "people you trust, can write to."
        )


@contextlib.contextmanager
def only_builder(cache: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Be the one process that builds in `cache`; call `on_wait` if that means waiting for another one.

    Whatever an earlier builder left unfinished is removed: while the lock is held, nobody is at work on it.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / "lock").open("w")
    except OSError as error:
        raise NpukitError(
            f"Cannot write to {cache} ({error.strerror}): set NPUKIT_CACHE to a folder that you can write to."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in cache.iterdir():
            remove_unfinished(folder)
        yield


@contextlib.contextmanager
def complete_or_absent(target: Path) -> Iterator[Path]:
    """A folder of the cache to fill, which becomes `target` if the block succeeds and vanishes otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(target) as folder:
        yield folder
