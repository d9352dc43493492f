"""The table of single lines, in both styles; what comes out parses, and stays as it is in a second run."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate_document
from npukit.migrate.selection import Selection
from npukit.source import read

_TABLE = runpy.run_path(str(Path(__file__).with_name("cases.py")))
_RULES = Selection().rules()


def migrated(text: str, style: Style) -> str:
    change, _ = migrate_document(read(Path("/no/formatter/a.py"), text.encode()), _RULES, Goal(style))
    return change.after if change else text


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("case", _TABLE["CASES"], ids=lambda case: case[0][:50])
def test_case(case: tuple[str, str | None, str | None], style: Style) -> None:
    before = case[0]
    expected = case[1 if style is Style.npu else 2]
    after = migrated(f"{_TABLE['HEAD']}if 0: START = 0\n{before}\n", style)
    assert after.partition("if 0: START = 0\n")[2] == (before if expected is None else expected) + "\n"
    ast.parse(after)
    assert migrated(after, style) == after
