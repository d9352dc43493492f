"""A new project on this engine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from npukit.errors import NpukitError

_TEMPLATE = Path(__file__).with_name("template")


def make_project(folder: Path) -> None:
    """Copy the template to a folder that is not there yet, or is empty; nothing half made stays behind.

    >>> make_project(Path("demo"))
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NpukitError(f"{folder} is there already: choose another name, or remove it first.")
    if not folder.absolute().parent.is_dir():
        raise NpukitError(f"There is no folder {folder.parent} to make {folder.name} in.")
    try:
        _make(folder.absolute())
    except OSError as error:
        raise NpukitError(f"{folder} cannot be made: {error}.") from None


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        made = Path(beside) / folder.name
        made.mkdir()
        for file in sorted(_TEMPLATE.glob("*.*")):
            shutil.copyfile(file, made / file.name)
        readme = made / "README.md"
        readme.write_text(readme.read_text(encoding="utf-8").replace("# NAME", f"# {folder.name}", 1), encoding="utf-8")
        if not folder.exists():
            made.replace(folder)
            return
        for file in made.iterdir():  # somebody may stand in the folder: it stays, and is filled
            file.replace(folder / file.name)
