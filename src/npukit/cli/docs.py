"""npukit docs"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import npukit
from npukit.errors import NpukitError


def docs(
    page: Annotated[str | None, typer.Argument(help="A page, such as train.", show_default=False)] = None,
) -> None:
    """Show a page of the documentation, or the list of pages."""
    pages = _pages()
    if page is None:
        for name, file in pages.items():
            print(f"{name:<16}{_title(file)}")
        return
    if page not in pages:
        raise NpukitError(f"There is no page {page}: `npukit docs` lists them all.")
    _show(pages[page].read_text(encoding="utf-8"))


def _pages() -> dict[str, Path]:
    """By name. A wheel carries the pages; a checkout has them beside its sources."""
    package = Path(npukit.__file__).parent
    inside = package / "docs"
    folder = inside if inside.is_dir() else package.parents[1] / "docs"
    found = {file.stem: file for file in folder.glob("*.md")}
    return dict(sorted((found | {file.parent.name: file for file in folder.glob("*/README.md")}).items()))


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next(lines).lstrip("# ").rstrip()


def _show(text: str) -> None:
    from rich.markdown import Markdown

    from npukit.report.terminal import console

    if (out := console()).is_terminal:
        with out.pager(styles=True):
            out.print(Markdown(text))
    else:
        print(text, end="")
