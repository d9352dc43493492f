"""Work in progress on disk: it carries a mark in its name, is locked while its process lives, and goes with it.

A process that is killed cannot tidy up. Whoever works in the same place next finds its leavings without a lock and
removes them, so that nothing piles up and nothing that is still in use is touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = ".unfinished-"
_UNFINISHED_NAME = re.compile(rf"{re.escape(UNFINISHED)}[0-9a-f]{{16}}(\.\w+)?")
_TEMPORARY_NAME = re.compile(r"npukit-[a-z]+-[0-9a-f]{16}")
_NEW = 5  # seconds in which its maker may not have locked it yet


def unfinished_name(suffix: str = "") -> str:
    """A name for what is being written, which nobody else has."""
    return f"{UNFINISHED}{secrets.token_hex(8)}{suffix}"


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A private folder for the time of the block, removed afterwards; one that a killed process left is removed first.

    >>> with temporary_folder("verify") as folder:
    ...     (folder / "ops.json").write_text("{}")
    """
    place = Path(tempfile.gettempdir())
    _remove_abandoned(place, _TEMPORARY_NAME)
    folder = place / f"npukit-{purpose}-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    with in_use(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Keep others from taking a file or folder for an abandoned one, as long as this process lives."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        with contextlib.suppress(OSError):  # some network disks have no locks; there nothing is ever removed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@functools.cache
def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left half written in a folder; asked again, do nothing."""
    _remove_abandoned(folder, _UNFINISHED_NAME)


def _remove_abandoned(folder: Path, name: re.Pattern[str]) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name.fullmatch(entry.name) and _is_abandoned(Path(entry.path)):
                remove(Path(entry.path))


def _is_abandoned(path: Path) -> bool:
    """Whether the process of ours that was at work on it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        return status.st_uid == os.geteuid() and time.time() - status.st_mtime > _NEW
    except OSError:
        return False
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove whatever is half written in a folder. Only for folders that nobody else is writing to."""
    for left in folder.glob(f"{UNFINISHED}*"):
        remove(left)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
