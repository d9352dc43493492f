"""The rules' pages in the documentation are those that the rules' docstrings make."""

from __future__ import annotations

from pathlib import Path

from npukit.migrate.pages import pages

FOLDER = Path(__file__).parents[2] / "docs" / "rules"


def test_pages_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == pages(), "run python -m npukit.migrate.pages docs/rules"
