"""Write migrated files so that nothing is lost: atomically, with the originals kept for `npukit migrate --undo`.

The journal is the folder .npukit/migrations in the project: one numbered folder a migration, with the original bytes
and the digest of what was written instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path

from npukit.errors import NpukitError
from npukit.migrate.git import has_uncommitted_changes
from npukit.migrate.migration import Migration
from npukit.report.unfinished import UNFINISHED
from npukit.report.writing import disk_errors_named, whole_folder, write_bytes, write_json

_FOLDER = Path(".npukit", "migrations")


def write_in_place(migration: Migration, allow_dirty: bool = False) -> None:
    """Replace the project's files by the migrated ones, each at once or not at all."""
    if not migration.changes:
        return
    if not allow_dirty and has_uncommitted_changes(migration.root):
        raise NpukitError(
            f"{migration.root} has uncommitted changes: commit them first, so that the migration is a separate "
            "change, or add --allow-dirty."
        )
    try:
        _keep_originals(migration)
    finally:
        if not _folders(migration.root):
            shutil.rmtree(migration.root / _FOLDER.parent, ignore_errors=True)
    try:
        for change in migration.changes:
            write_bytes(change.path, change.after.encode(change.encoding))
    except NpukitError:
        with contextlib.suppress(NpukitError):  # if the disk refuses now, --undo puts it back later
            undo(migration.root)
        raise


def _keep_originals(migration: Migration) -> None:
    """Write a folder of the journal."""
    with whole_folder(_next_folder(migration.root)) as folder:
        entries: list[dict[str, str]] = []
        for number, change in enumerate(migration.changes):
            original = change.path.read_bytes()
            if original != change.before.encode(change.encoding):
                raise NpukitError(f"{change.path} changed during the migration: run it again.")
            (folder / str(number)).write_bytes(original)
            new = change.after.encode(change.encoding)
            entries.append(
                {"file": str(change.path.relative_to(migration.root)), "original": str(number), "new": _hash(new)}
            )
        write_json(folder / "changes.json", entries)


def write_copy(migration: Migration, source: Path, output: Path) -> None:
    """Copy the project and write the migrated files into the copy; one file goes to a file or into a folder.

    >>> write_copy(migration, Path("train.py"), Path("train_npu.py"))
    """
    if source.is_file() and output.suffix == source.suffix and not output.is_dir():
        if output.resolve() == source.resolve():
            raise NpukitError(f"{output} is the file itself: use --in-place, or name another one.")
        data = [change.after.encode(change.encoding) for change in migration.changes]
        write_bytes(output, data[0] if data else source.read_bytes())
        return
    with whole_folder(output) as copy:
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True, ignore=_left_out, dirs_exist_ok=True)
        else:
            shutil.copy2(source, copy / source.name)
        for change in migration.changes:
            (copy / change.path.relative_to(migration.root)).write_bytes(change.after.encode(change.encoding))


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What no copy needs: what tools keep there, the copy itself where it is made inside, pipes and sockets."""
    kept_by_tools = shutil.ignore_patterns(".git", ".npukit", "__pycache__", f"{UNFINISHED}*")(folder, names)
    return {name for name in names if name in kept_by_tools or not _can_be_copied(Path(folder, name))}


def _can_be_copied(path: Path) -> bool:
    return path.is_symlink() or path.is_file() or path.is_dir()


def undo(path: Path) -> list[Path]:
    """Put back the originals of a folder's or a file's last migration; files that were edited since are refused."""
    root = _root_of(path)
    folder, entries = _last_migration(root, path)
    wanted = [entry for entry in entries if _concerns(entry, root, path)]
    edited = [entry["file"] for entry in wanted if _is_edited(root / entry["file"], entry, folder)]
    if edited:
        raise NpukitError(
            f"These files were edited since the migration: {', '.join(edited)}. Their originals are in {folder}."
        )
    for entry in wanted:
        file, original = root / entry["file"], (folder / entry["original"]).read_bytes()
        if not file.is_file() or file.read_bytes() != original:
            write_bytes(file, original)
    if left := [entry for entry in entries if entry not in wanted]:
        write_json(folder / "changes.json", left)
    else:
        shutil.rmtree(folder if len(_folders(root)) > 1 else folder.parent.parent)
    return [root / entry["file"] for entry in wanted]


def _root_of(path: Path) -> Path:
    """The folder whose journal has a path: the nearest one with a journal, which may be above the path."""
    above = [*([path] if path.is_dir() else []), *path.parents, *path.absolute().parents]
    return next((folder for folder in above if _folders(folder)), path if path.is_dir() else path.parent)


def _last_migration(root: Path, path: Path) -> tuple[Path, list[dict[str, str]]]:
    """The journal's last folder in which a path was changed, with what it noted."""
    for folder in reversed(_folders(root)):
        entries = _entries(folder, root)
        if any(_concerns(entry, root, path) for entry in entries):
            return folder, entries
    raise NpukitError(f"{path} has no migration to undo: nothing about it is in {root / _FOLDER}.")


def _concerns(entry: dict[str, str], root: Path, path: Path) -> bool:
    return (root / entry["file"]).resolve().is_relative_to(path.resolve())


def _entries(folder: Path, root: Path) -> list[dict[str, str]]:
    """What a migration noted. A project may come with a journal: it names files of the project, and nothing else."""
    try:
        entries = [
            {name: str(entry[name]) for name in ("file", "original", "new")}
            for entry in json.loads((folder / "changes.json").read_text(encoding="utf-8"))
        ]
        inside = all(
            (root / entry["file"]).resolve().is_relative_to(root.resolve())
            and (folder / entry["original"]).resolve().parent == folder.resolve()
            and (folder / entry["original"]).is_file()
            for entry in entries
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        inside = False
    if not inside:
        raise NpukitError(f"{folder} is not what a migration wrote: nothing was undone. Delete it.")
    return entries


def _is_edited(file: Path, entry: dict[str, str], folder: Path) -> bool:
    """Whether a file is neither what the migration wrote nor what it was."""
    if not file.is_file():
        return False
    data = file.read_bytes()
    return _hash(data) != entry["new"] and data != (folder / entry["original"]).read_bytes()


def _next_folder(root: Path) -> Path:
    base = root / _FOLDER
    with disk_errors_named(base):
        base.mkdir(parents=True, exist_ok=True)
        (base.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    folders = _folders(root)
    return base / f"{int(folders[-1].name) + 1 if folders else 1:04}"


def _folders(root: Path) -> list[Path]:
    return sorted((root / _FOLDER).glob("[0-9][0-9][0-9][0-9]"))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
