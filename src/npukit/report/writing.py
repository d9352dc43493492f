"""Write files and folders that are there whole or not at all: written beside the place they belong, then renamed.

Whatever goes wrong with the disk is one sentence that names the path and the cause.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError

UNFINISHED = ".unfinished-"


def write_text(path: Path, text: str) -> None:
    """Write a file as UTF-8.

    >>> write_text(Path("report.md"), "# Report")
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON.

    >>> write_json(Path("result.json"), {"same": True})
    """
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file; a device or a pipe, such as /dev/stdout, is written to directly."""
    if path.exists() and not path.is_file() and not path.is_dir():
        with _named(path, path):
            path.write_bytes(data)
        return
    with whole_file(path) as beside:
        beside.write_bytes(data)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name of an empty file to fill, which becomes `path` if the block succeeds and vanishes otherwise.

    It has the suffix of `path`, and the mode of the file that it replaces.

    >>> with whole_file(Path("loss.png")) as beside:
    ...     figure.savefig(beside)
    """
    check_file(path)
    final = path.resolve()  # a link stays one, and what it points to is replaced
    beside = final.with_name(f"{UNFINISHED}{secrets.token_hex(8)}{final.suffix}")
    with _named(path, beside):
        try:
            os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            yield beside
            if final.exists():
                shutil.copymode(final, beside)
            beside.replace(final)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()


@contextlib.contextmanager
def whole_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `path` if the block succeeds and vanishes otherwise.

    A folder that is there already must be empty, unless it is to be replaced. What a process that was killed left of
    the same folder is removed.

    >>> with whole_folder(Path("exported")) as beside:
    ...     model.save_pretrained(beside)
    """
    check_parent(path)
    if path.exists() and not path.is_dir():
        raise NpukitError(f"Cannot write {path}: it is a file. Name a folder.")
    if path.is_dir() and not replace and any(path.iterdir()):
        raise NpukitError(f"Cannot write {path}: the folder is not empty. Name a new one.")
    final = path.resolve()
    _remove_abandoned(final)
    beside = _beside(final, secrets.token_hex(8))
    with _named(path, beside):
        try:
            beside.mkdir()
            with _held(beside):
                yield beside
                _put(beside, final)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _beside(final: Path, mark: str) -> Path:
    """A hidden name beside a folder that says which one it is for, as far as names may be long."""
    return final.with_name(f"{UNFINISHED}{final.name[:48]}-{mark}")


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold a folder while it is written to; False where another process holds it, or the disk has no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except OSError:
            is_ours = False
        yield is_ours
    finally:
        os.close(descriptor)


def _remove_abandoned(final: Path) -> None:
    """Remove what killed processes left of a folder; a process that lives holds what it writes to."""
    name = re.compile(re.escape(_beside(final, "").name) + "[0-9a-f]{16}")
    with contextlib.suppress(OSError):
        for left in (each for each in final.parent.iterdir() if name.fullmatch(each.name)):
            with _held(left) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(left, ignore_errors=True)


def _put(made: Path, final: Path) -> None:
    if not final.is_dir():
        made.rename(final)
    elif not any(final.iterdir()):
        for each in made.iterdir():  # somebody may stand in the empty folder: it stays, and is filled
            each.rename(final / each.name)
    else:
        old = final.rename(_beside(final, secrets.token_hex(8)))
        made.rename(final)
        shutil.rmtree(old)


def check_file(path: Path) -> None:
    """Refuse a place where no file can be written; ask before long work, so that its result is not lost."""
    check_parent(path)
    if path.is_dir():
        raise NpukitError(f"Cannot write {path}: it is a folder. Name a file.")


def check_parent(path: Path) -> None:
    """Refuse a place whose folder does not exist: it is more often misspelt than meant to be created."""
    parent = path.parent
    if not parent.exists():
        raise NpukitError(f"Cannot write {path}: the folder {parent} does not exist.")
    if not parent.is_dir():
        raise NpukitError(f"Cannot write {path}: {parent} is not a folder.")


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left in a folder. Only for folders that nobody else is writing to."""
    for left in folder.glob(f"{UNFINISHED}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path, beside: Path) -> Iterator[None]:
    """Turn what the disk says about what is written into a sentence about `path`; other errors pass."""
    try:
        yield
    except NpukitError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise NpukitError(
                f"Cannot write {path}: the disk is full. Free some space, or use another disk.", on_the_way=True
            ) from error
        if isinstance(error, OSError) and _concerns(error, beside):
            told = (error.strerror or str(error)).lower()
            raise NpukitError(f"Cannot write {path}: {told}.", on_the_way=True) from error
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk or quota is behind an error, also where a library has made an error of its own of it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    cause = error.__cause__ or error.__context__
    # What is written in Rust (safetensors, tokenizers) has no errno, only the system's own words.
    return os.strerror(errno.ENOSPC) in str(error) or (cause is not None and is_disk_full(cause))


def _concerns(error: OSError, beside: Path) -> bool:
    """Whether an error came from writing: the block may read other files, or the network, as well."""
    named = isinstance(error.filename, str | Path) and Path(error.filename).is_relative_to(beside)
    return named or error.errno in (errno.EIO, errno.EFBIG)
