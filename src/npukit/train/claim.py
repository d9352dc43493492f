"""One run at a time in an output folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from npukit.errors import NpukitError

LOCK = ".lock"
_held: dict[Path, int] = {}  # the process: closing any descriptor of a file releases all POSIX locks on it


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other runs out of it until the block ends or this process dies.

    A run claims its folder before it reads or writes there. A folder that the caller has claimed is used as it is.

    >>> with claim(Path("output")):
    ...     trainer.train()
    """
    place = folder.resolve()
    if _held.get(place) == os.getpid():
        yield
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise NpukitError(f"Cannot create the output folder: {error}.") from None
    try:
        _lock(descriptor, folder)
        _held[place] = os.getpid()
        try:
            yield
        finally:
            del _held[place]
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    taken = NpukitError(f"Another run is writing to {folder}: wait for it, or choose another output folder.")
    try:
        # Not flock: when this process is killed, its data loading workers would still hold the lock.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise taken from None
    except OSError:  # a network disk without locks: only processes of this machine can be checked
        if _is_alive(os.pread(descriptor, 1000, 0)):
            raise taken from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode(), 0)


def _is_alive(written: bytes) -> bool:
    """Whether the process that wrote this runs on this machine."""
    try:
        who = json.loads(written)
        if who["host"] != socket.gethostname() or who["process"] == os.getpid():
            return False
        os.kill(who["process"], 0)
    except (ValueError, KeyError, TypeError, ProcessLookupError):
        return False
    except PermissionError:  # another user's
        return True
    return True
