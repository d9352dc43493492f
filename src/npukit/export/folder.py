"""The folder that an export writes: completely or not at all, and never over a user's files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npukit.errors import NpukitError
from npukit.report.writing import make_folder, whole_folder


@contextmanager
def new_folder(output: Path, needed: int, force: bool = False, sources: tuple[Path, ...] = ()) -> Iterator[Path]:
    """A folder to fill, which becomes `output` if the block succeeds.

    `needed` bytes must be free there. `sources`, which are read at the same time, are never replaced.

    >>> with new_folder(Path("merged"), needed=0) as folder: (folder / "config.json").write_text("{}")
    """
    check_output(output, force, sources)
    make_folder(output.parent)
    free = shutil.disk_usage(output.parent).free
    if needed > free:
        raise NpukitError(f"{output.parent} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed.")
    with whole_folder(output, replace=force) as beside:
        yield beside


def check_output(output: Path, force: bool, sources: tuple[Path, ...] = ()) -> None:
    """Refuse an output that would destroy something, before anything is computed."""
    for source in sources:
        if output.resolve() == source.resolve() or output.resolve() in source.resolve().parents:
            raise NpukitError(f"{output} holds {source}, which this command reads: choose another --output.")
    if output.is_dir() and any(output.iterdir()) and not force:
        raise NpukitError(f"{output} already exists: choose another --output, or replace it with --force.")
