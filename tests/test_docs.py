"""What the pages promise exists: their links, their anchors, the commands they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npukit.cli.docs import docs
from npukit.cli.verbs import VERBS
from npukit.errors import NpukitError

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
VERB_NAMES = {name for group in VERBS.values() for verb in group for name in (verb.name, *verb.also)}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(_anchor, headings), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"(?<!`)`npukit ([a-z][\w-]*)", text)
    for block in re.findall(r"```.*?```", text, flags=re.DOTALL):
        shown += re.findall(r"^\$? ?npukit ([a-z][\w-]*)", block, re.MULTILINE)
    assert set(shown) <= VERB_NAMES


def test_every_verb_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    docs(None)
    pages = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {verb.page or verb.name for group in VERBS.values() for verb in group} <= set(pages)
    docs("train")
    assert capsys.readouterr().out == (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    with pytest.raises(NpukitError, match="no page"):
        docs("../README")


def test_the_readme_shows_every_verb() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = {verb.name for group in VERBS.values() for verb in group if f"npukit {verb.name}" not in readme}
    assert missing <= {"pt", "devices"}
