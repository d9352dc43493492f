"""npukit docs"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

import npukit
from npukit.cli.help import nearest
from npukit.cli.options import JsonOption
from npukit.cli.results import show
from npukit.cli.verbs import VERBS
from npukit.errors import NpukitError
from npukit.report.language import language
from npukit.report.terminal import printable

PARTS = ("guides", "concepts", "reference")
COMMENT = re.compile(r"(?:(?<=\n\n)<!--.*?-->\n\n?|^<!--.*?-->\n)", re.MULTILINE | re.DOTALL)
MAX_PAGES, LINE = 20, 160  # pages that a search shows, and characters of the line of each


def docs(
    page: Annotated[
        str | None, typer.Argument(help="A page or a command, such as fine-tune.", show_default=False)
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", metavar="WORDS", show_default=False, help="Search all pages for these words."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a page of the documentation, or the list of pages.

    Examples:
        npukit docs  # the list
        npukit docs precision  # the guide of a command
        npukit docs --search "gradient overflow"
    """
    pages = _pages()
    if search is not None:
        hits = _search(search, pages)
        text = "\n".join(f"{hit['page']:<22}{hit['line']}" for hit in hits) or f"No page has {printable(search)}."
        show({"search": search, "pages": hits}, text, json, 0 if hits else 1)
        return
    if page is None:
        titles = {name: _title(file) for name, file in pages.items()}
        rows = [{"page": name, "title": title} for name, title in titles.items()]
        show({"pages": rows}, "\n".join(f"{name:<22}{title}" for name, title in titles.items()), json)
        return
    of_verbs = {verb.name: verb.page for verbs in VERBS.values() for verb in verbs if verb.page}
    name = page if page in pages else of_verbs.get(page, page)
    if name not in pages:
        raise _no_page(page, pages)
    text = _text(pages[name])
    if json:
        show({"page": name, "title": _title(pages[name]), "text": text}, "", json)
    else:
        _show(text)


def _no_page(page: str, pages: dict[str, Path]) -> NpukitError:
    """The error that there is no such page, with what to try instead."""
    if re.fullmatch(r"NPK\d{3}", page):
        return NpukitError(f"There is no page {page}: `npukit explain {page}` explains it.")
    if near := nearest(page, list(pages)):
        return NpukitError(f"There is no page {page}: did you mean {near}?")
    if _search(page, pages):
        return NpukitError(f"There is no page {page}: `npukit docs --search {shlex.quote(page)}` finds it in others.")
    return NpukitError(f"There is no page {page}: `npukit docs` lists them all.")


def _pages() -> dict[str, Path]:
    """The pages by name, guides first. A wheel contains them; a checkout has them beside its sources."""
    package = Path(npukit.__file__).parent
    inside = package / "docs"
    folder = inside if inside.is_dir() else package.parents[1] / "docs"
    pages = {"index": folder / "README.md", "glossary": folder / "glossary.md"}
    for part in PARTS:
        pages |= {file.stem: file for file in sorted((folder / part).glob("*.md")) if file.stem != "README"}
        pages |= {file.parent.name: file for file in sorted((folder / part).glob("*/README.md"))}
    return {name: file for name, file in pages.items() if not name.endswith(".zh")}


def _search(search: str, pages: dict[str, Path]) -> list[dict[str, str]]:
    """The pages that contain all these words, those with most occurrences first, each with its best line."""
    words = search.lower().split()
    hits: list[tuple[int, dict[str, str]]] = []
    for name, file in pages.items() if words else ():
        text = _text(file)
        counts = [text.lower().count(word) for word in words]
        if all(counts):
            line = max(text.splitlines(), key=lambda line: sum(word in line.lower() for word in words))
            shown = _plain(line)[:LINE]
            hits.append((sum(counts), {"page": name, "title": _title(file), "line": shown}))
    return [hit for _, hit in sorted(hits, key=lambda pair: -pair[0])[:MAX_PAGES]]


def _plain(line: str) -> str:
    """A line of Markdown as text: without marks, tags and the addresses of links.

    >>> _plain("| `EI0002`<br>timeout | see [HCCL](hccl.md) |")
    '`EI0002`, timeout, see HCCL'
    """
    line = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.strip(" #|-*"))
    return re.sub(r"\s*(?:<br>|(?<=\s)\|(?=\s))\s*", ", ", line)


def _text(file: Path) -> str:
    """A page as its readers see it: without the comments that say how its commands are tested."""
    return COMMENT.sub("", _translated(file).read_text(encoding="utf-8"))


def _translated(file: Path) -> Path:
    """The Chinese page, if the language is Chinese and there is one."""
    chinese = file.with_suffix(".zh.md")
    return chinese if language() == "zh" and chinese.is_file() else file


def _title(file: Path) -> str:
    with _translated(file).open(encoding="utf-8") as lines:
        return next(lines).lstrip("# ").rstrip()


def _show(text: str) -> None:
    from rich.markdown import Markdown

    from npukit.report.terminal import console

    if (out := console()).is_terminal:
        with out.pager(styles=True):
            out.print(Markdown(text))
    else:
        print(text, end="")
