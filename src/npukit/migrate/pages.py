"""A page of the documentation for each rule, made from its docstring: `python -m npukit.migrate.pages docs/rules`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from npukit.migrate.engine import BROKEN_RULE, UNREADABLE
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules

_GROUPS = {
    "NPK1": "Migration: what `npukit migrate` changes",
    "NPK2": "CUDA without a counterpart, or with another one",
    "NPK3": "Support of torch's functions and types",
    "NPK4": "Third-party libraries",
    "NPK5": "Shapes that change",
    "NPK6": "Fused operators",
    "NPK7": "Traps of training code",
}
_AS_WRITTEN = "<!-- fmt: off -->"  # to formatters: examples of bad code stay as they are
_UNREADABLE_PAGE = """A file that could not be read: not valid Python, cut off, of an unknown encoding, over 8 MiB.

Nothing in it was checked or changed. Mend it, or leave it out with `exclude` in pyproject.toml.
"""


_BROKEN_PAGE = """A rule that failed on this file: a bug of npukit. All other rules were applied; please report it."""


def pages() -> dict[str, str]:
    """Every page by its file name."""
    found = {f"{rule.code}.md": page(rule) for rule in all_rules()}
    found[f"{UNREADABLE}.md"] = f"# {UNREADABLE}: unreadable\n\nseverity: warning\n\n{_UNREADABLE_PAGE}"
    found[f"{BROKEN_RULE}.md"] = f"# {BROKEN_RULE}: broken-rule\n\nseverity: warning\n\n{_BROKEN_PAGE}\n"
    found["README.md"] = "\n".join(_index()) + "\n"
    return found


def page(rule: Rule) -> str:
    """A rule's page."""
    how = "`npukit migrate` changes it" if rule.fixes else "found, changed by hand"
    head = f"# {rule.code}: {rule.name}\n\n{_AS_WRITTEN}\n\nseverity: {rule.severity.value} · {how}\n\n"
    return head + "\n".join(_body(rule.doc)) + "\n"


def _body(doc: str) -> Iterator[str]:
    """The docstring with its examples as code blocks."""

    def kind(line: str) -> str:
        if re.match(r"(bad|good)\b.*:$", line):
            return "heading"
        if line.startswith("    ") or re.match(r"(before|after|finds)\b[^:]*:", line):
            return "code"
        return "text"

    language = "python"
    for what, block in groupby(doc.splitlines(), key=kind):
        if what == "heading":
            heading = next(block)
            language = "text" if "(" in heading and "card" not in heading else "python"
            yield f"**{heading.rstrip(':')}**\n"
        elif what == "code":
            yield from (f"```{language}", *(re.sub("^    ", "", line) for line in block), "```")
        else:
            yield from block


def _index() -> Iterator[str]:
    yield "# Rules"
    yield "\nMade from the rules themselves by `python -m npukit.migrate.pages docs/rules`."
    for prefix, rules in groupby(all_rules(), key=lambda rule: rule.code[:4]):
        yield f"\n## {_GROUPS[prefix]}\n"
        yield from (f"- [{rule.code}]({rule.code}.md) {rule.name}: {rule.doc.splitlines()[0]}" for rule in rules)
    yield f"\n[{UNREADABLE}]({UNREADABLE}.md): a file that could not be read."
    yield f"\n[{BROKEN_RULE}]({BROKEN_RULE}.md): a rule that failed."


def write_pages(folder: Path) -> None:
    """Write all pages into the folder, and remove pages of rules that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
