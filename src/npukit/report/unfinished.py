"""Files and folders in progress: marked by their names, and locked as long as their process lives.

A killed process cannot clean up. The next process that works in the same place finds its unlocked files and removes
them, so that nothing accumulates and nothing in use is touched.
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
_NEW = 5  # seconds within which a new file may not be locked yet


def unfinished_name(suffix: str = "") -> str:
    """A unique name for something that is being written."""
    return f"{UNFINISHED}{secrets.token_hex(8)}{suffix}"


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A private folder that is removed after the block. Folders that killed processes left are removed first.

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
    """Mark a file or folder as in use, as long as this process lives."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        with contextlib.suppress(OSError):  # some network disks have no locks; nothing is ever removed there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@functools.cache
def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left unfinished in a folder. Repeated calls do nothing."""
    _remove_abandoned(folder, _UNFINISHED_NAME)


def _remove_abandoned(folder: Path, name: re.Pattern[str]) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name.fullmatch(entry.name) and _is_abandoned(Path(entry.path)):
                remove(Path(entry.path))


def _is_abandoned(path: Path) -> bool:
    """Whether the npukit process that worked on it is gone."""
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
    """Remove everything unfinished in a folder. Only for folders that nobody else writes to."""
    for left in folder.glob(f"{UNFINISHED}*"):
        remove(left)


def remove(path: Path) -> None:
    """Remove a file or a folder, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
