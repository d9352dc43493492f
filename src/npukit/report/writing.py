"""Write files and folders atomically: next to their destination, then renamed.

Disk errors become one sentence that names the path and the cause.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.report.unfinished import in_use, remove, remove_abandoned, unfinished_name

NO_ROOM = 1 << 16  # a disk with fewer free bytes counts as full, whatever the error says
FREE_SOME = "Free some space, or use another disk."


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
    """Write a file. Devices and pipes, such as /dev/stdout, are written to directly."""
    if path.exists() and not path.is_file() and not path.is_dir():
        with disk_errors_named(path):
            path.write_bytes(data)
        return
    with whole_file(path) as beside:
        beside.write_bytes(data)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name of an empty file to fill. It becomes `path` if the block succeeds, and is removed otherwise.

    It has the suffix of `path`, and the mode of the file that it replaces.

    >>> with whole_file(Path("loss.png")) as beside:
    ...     figure.savefig(beside)
    """
    check_file(path)
    final = path.resolve()  # a link stays, and its target is replaced
    beside = final.with_name(unfinished_name(final.suffix))
    with _removed_in_the_end(beside), disk_errors_named(path, beside):
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        with in_use(beside):
            yield beside
            if final.exists():
                shutil.copymode(final, beside)
            beside.replace(final)


@contextlib.contextmanager
def whole_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """A folder to fill. It becomes `path` if the block succeeds, and is removed otherwise.

    An existing folder must be empty, unless it is to be replaced.

    >>> with whole_folder(Path("exported")) as beside:
    ...     model.save_pretrained(beside)
    """
    check_parent(path)
    if path.exists() and not path.is_dir():
        raise NpukitError(f"Cannot write {path}: it is a file. Name a folder.")
    if path.is_dir() and not replace and any(path.iterdir()):
        raise NpukitError(f"Cannot write {path}: the folder is not empty. Name a new one.")
    final = path.resolve()
    beside = final.with_name(unfinished_name())
    with _removed_in_the_end(beside), disk_errors_named(path, beside):
        beside.mkdir()
        with in_use(beside):
            yield beside
            _move_into_place(beside, final)


@contextlib.contextmanager
def _removed_in_the_end(beside: Path) -> Iterator[None]:
    """Remove `beside` at the end, and what killed processes have left in the same folder."""
    remove_abandoned(beside.parent)
    try:
        yield
    finally:
        remove(beside)


def _move_into_place(beside: Path, final: Path) -> None:
    if not final.is_dir():
        beside.rename(final)
    elif not any(final.iterdir()):
        for path in beside.iterdir():  # it may be somebody's working directory, so it is kept and filled
            path.rename(final / path.name)
    else:
        old = final.rename(final.with_name(unfinished_name()))
        beside.rename(final)
        shutil.rmtree(old)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it; one sentence where that is not possible. An existing folder stays.

    >>> make_folder(Path("runs/profile"))
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error, path):
            raise  # the command has a sentence for it
        raise NpukitError(f"Cannot write {path}: {(error.strerror or str(error)).lower()}.") from error


def check_file(path: Path) -> None:
    """Refuse a place where no file can be written. Call this before long work, so that its result is not lost."""
    check_parent(path)
    if path.is_dir():
        raise NpukitError(f"Cannot write {path}: it is a folder. Name a file.")


def check_parent(path: Path) -> None:
    """Refuse a path whose parent folder does not exist, which is probably a typing error."""
    parent = path.parent
    if not parent.exists():
        raise NpukitError(f"Cannot write {path}: the folder {parent} does not exist.")
    if not parent.is_dir():
        raise NpukitError(f"Cannot write {path}: {parent} is not a folder.")
    if not os.access(parent, os.W_OK):
        folder = parent.resolve()  # and is not ..
        raise NpukitError(
            f"Cannot write {path}: you have no permission to write to the folder {folder}. Choose another place."
        )


@contextlib.contextmanager
def disk_errors_named(path: Path, beside: Path | None = None, advice: str = FREE_SOME) -> Iterator[None]:
    """Turn disk errors about `path` into a sentence. Other errors pass through.

    `beside` is where it is written until it is complete; `advice` says what to do about a full disk.

    >>> with disk_errors_named(Path("run/checkpoint-8")):
    ...     torch.save(state, file)
    """
    beside = beside or path
    try:
        yield
    except NpukitError:
        raise
    except Exception as error:
        if is_disk_full(error, beside):
            raise NpukitError(f"Cannot write {path}: the disk is full. {advice}", on_the_way=True) from error
        if isinstance(error, OSError) and _is_about_writing(error, beside):
            reason = (error.strerror or str(error)).lower()
            raise NpukitError(f"Cannot write {path}: {reason}.", on_the_way=True) from error
        raise


def is_disk_full(error: BaseException, place: Path | None = None) -> bool:
    """Whether an error was caused by a full disk or quota, even if a library replaced the original error.

    `place` is what was being written: torch, numpy and others do not say why they failed, but its disk has no space.
    """
    if place is not None and isinstance(error, OSError | RuntimeError) and _has_no_room(place):
        return True
    # Libraries in Rust (safetensors, tokenizers) give no errno, only the system's message.
    return any(
        (isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT))
        or os.strerror(errno.ENOSPC) in str(cause)
        for cause in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def disk_full(error: BaseException) -> NpukitError | None:
    """The sentence for an error caused by a full disk, wherever it occurred; None for any other error."""
    if not is_disk_full(error):
        return None
    filename = next((cause.filename for cause in _chain(error) if isinstance(cause, OSError) and cause.filename), None)
    places = (Path.cwd(), Path(tempfile.gettempdir()))
    where = filename or next((place for place in places if _has_no_room(place)), "a file")
    return NpukitError(f"Cannot write {where}: the disk is full. {FREE_SOME}", on_the_way=True, code="disk_full")


def _has_no_room(place: Path) -> bool:
    existing = next((folder for folder in (place, *place.absolute().parents) if folder.exists()), None)
    if existing is None:
        return False
    disk = shutil.disk_usage(existing)
    return disk.total > 0 and disk.free < NO_ROOM  # /proc and /sys have no size


def _is_about_writing(error: OSError, beside: Path) -> bool:
    """Whether an error came from writing, since the block may also read other files or the network."""
    blamed = Path(error.filename) if isinstance(error.filename, str | Path) else None
    is_own = blamed is not None and (blamed.is_relative_to(beside) or blamed in beside.parents)  # or a folder above it
    return is_own or error.errno in (errno.EIO, errno.EFBIG)
