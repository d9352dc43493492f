"""`npukit new`: a new project that uses this engine."""

from __future__ import annotations

import shutil
from pathlib import Path

from npukit.report.writing import whole_folder

_TEMPLATE = Path(__file__).with_name("template")


def make_project(folder: Path) -> None:
    """Copy the template to a new or empty folder.

    >>> make_project(Path("demo"))
    """
    with whole_folder(folder) as project:
        for file in sorted(_TEMPLATE.glob("*.*")):
            shutil.copyfile(file, project / file.name)
        readme = project / "README.md"
        name = folder.absolute().name
        readme.write_text(readme.read_text(encoding="utf-8").replace("# NAME", f"# {name}", 1), encoding="utf-8")
