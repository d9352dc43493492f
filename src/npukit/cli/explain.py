"""npukit explain"""

from __future__ import annotations

import re
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import JsonOption
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.report.language import language, translated
from npukit.report.pages import chinese_page
from npukit.report.terminal import printable

if TYPE_CHECKING:
    from npukit.explain import Search

LARGE = 50 * 2**20  # bytes that take a while to read
FINDING = re.compile(r"NPK\d+", re.IGNORECASE)
LOG_SUFFIXES = ("", ".log", ".txt", ".out", ".err")  # beside logs, a folder may hold checkpoints


def explain(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[CODE|TEXT|FILE|FOLDER|-]...", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Explain an error code, a message or a log, and what to do.

    Reads standard input if nothing is named. Among the logs of several ranks it finds the line where the trouble
    began. Exits with code 1 if it knows none of the errors.

    Examples:
        npukit explain 507018  # a code of CANN, torch_npu or HCCL, or a finding's (NPK110)
        npukit explain train.log npukit-logs  # logs, and folders of them
        python train.py 2>&1 | npukit explain
    """
    from npukit.explain import Search
    from npukit.explain.text import as_text

    if what and _explain_findings(what, json):
        return
    search = Search()
    is_log = _read(what or ["-"], search)
    explanations = search.explanations

    def text() -> str:
        only_warnings = all(explanation.kind == "warning" for explanation in explanations)
        unknown = [_unknown(search.first_error_line)] if only_warnings and search.first_error_line else []
        answers = [as_text(explanations, every=not is_log)] if explanations else []
        near = [] if known or unknown or not answers else _near(search.first_error_line)
        return "\n\n".join([*unknown, *answers, *near]) or _unknown(None)

    known = any(explanation.strength != "nearest" for explanation in explanations)
    result = {"known": known, "explanations": explanations, "first_error_line": search.first_error_line}
    show(result, text, json, 0 if known else 1)


def _unknown(line: str | None) -> str:
    """The answer for an unknown error."""
    text = "npukit knows none of the errors here."
    if line is None:
        return translated(f"{text} Give the whole log, or search the guides: `npukit docs --search WORDS`.")
    return "\n".join([translated(f"{text} The first line that looks like one:"), f"  {printable(line)}", *_near(line)])


def _near(line: str | None) -> list[str]:
    """The known errors that share most words with a line."""
    from npukit.explain.nearest import nearest

    near = nearest(line) if line else []
    rows = [f"  {neighbour.likeness:4.0%}  {neighbour.code}: {translated(neighbour.meaning)}" for neighbour in near]
    heading = translated("The known errors that share most of its words, which may be something else:")
    return ["\n".join([heading, *rows])] if rows else []


def _explain_findings(codes: list[str], json: bool) -> bool:
    """Print the pages of findings, if all arguments are codes of rules or of `doctor`."""
    if not all(FINDING.fullmatch(code) for code in codes):
        return False
    from npukit.doctor.problems import problem_page
    from npukit.migrate.pages import rule_page
    from npukit.performance.advise.pages import advice_page

    page_of = {code.upper(): rule_page(code) or problem_page(code.upper()) or advice_page(code) for code in codes}
    if unknown := [code for code, page in page_of.items() if not page]:
        lists = "`npukit docs rules`, `npukit docs doctor` and `npukit docs advice` list them"
        raise NpukitError(f"There is no finding {', '.join(unknown)}: {lists}.")
    pages = {code: page for code, page in page_of.items() if page}
    text = "\n".join(pages.values())
    show({"known": True, "pages": pages}, chinese_page(text) if language() == "zh" else text, json)
    return True


def _read(what: list[str], search: Search) -> bool:
    """Search the arguments; returns whether they were logs rather than codes or messages."""
    if what == ["-"]:
        if sys.stdin.isatty():
            raise NpukitError("Name a code, a message or a log file, or pipe a log in: see `npukit explain --help`.")
        search.read("", sys.stdin.buffer)
        return True
    if all(_exists(word) for word in what):
        paths = [Path(word) for word in what]
        _read_files([file for path in paths for file in (_logs_in(path) if path.is_dir() else [path])], search)
        return True
    if missing := [word for word in what if _names_a_file(word) and not _exists(word)]:
        raise NpukitError(f"There is no file {missing[0]}.")
    are_codes = all(" " not in word and any(character.isdigit() for character in word) for word in what)
    search.read("", BytesIO(("\n" if are_codes else " ").join(what).encode(errors="replace")))
    return False


def _exists(name: str) -> bool:
    """Whether a file exists; a pasted message may be too long for a file name."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def _names_a_file(word: str) -> bool:
    return " " not in word and ("/" in word or Path(word).suffix in LOG_SUFFIXES[1:])


def _read_files(files: list[Path], search: Search) -> None:
    from rich.console import Console
    from rich.progress import Progress

    large = sum(file.stat().st_size for file in files) > LARGE
    with Progress(
        console=Console(stderr=True), transient=True, disable=not (large and sys.stderr.isatty())
    ) as progress:
        for file in files:
            with progress.open(file, "rb", description=file.name) as log:
                search.read(str(file), log)


def _logs_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in LOG_SUFFIXES and file.is_file())
