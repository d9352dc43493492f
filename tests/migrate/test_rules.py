"""Each rule does what its docstring says: the examples there are the tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate_document
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules
from npukit.source import read

_HEAD = "import os\nimport torch\nfrom apex import amp\nimport torch.distributed as dist\n"
_EXAMPLE = re.compile(r"^(before|after \(npu\)|after \(portable\)):\s+(.*)$", re.MULTILINE)

_ELSEWHERE = ("NPK105", "NPK170")  # tested in test_migration.py and test_distributed.py: they need more than a line
_REWRITING = [
    rule for rule in all_rules() if rule.code.startswith("NPK1") and rule.fixes and rule.code not in _ELSEWHERE
]


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("rule", _REWRITING, ids=lambda rule: rule.name)
def test_docstring(rule: Rule, style: Style) -> None:
    examples = dict(_EXAMPLE.findall(rule.doc))
    expected = examples.get(f"after ({style.value})", examples["before"])
    shell = bool(rule.text_checks)
    head = "" if shell else _HEAD
    document = read(Path("a.sh" if shell else "a.py"), (head + examples["before"] + "\n").encode())
    change, _ = migrate_document(document, _REWRITING, Goal(style))
    after = change.after if change else document.text
    assert after.splitlines()[-1] == expected


def _documented() -> Iterator[tuple[str, Style, str, str]]:
    """The rows of the guide's table: code, style, oldest torch, what is written."""
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "how-migrate-decides.md").read_text(encoding="utf-8")
    section = page.partition("## What it writes")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    for line in rows[2:]:
        before, new, old, npu = (cell.strip() for cell in line.strip("|").split(" | "))
        if before.count("`") != 2 or not before.endswith("`"):
            continue  # of a shell, or several
        old = new if old == "the same" else old
        for style, torch, after in ((Style.portable, "", new), (Style.portable, "2.5", old), (Style.npu, "", npu)):
            yield before.strip("`"), style, torch, before.strip("`") if after == "unchanged" else after.strip("`")


@pytest.mark.parametrize(("before", "style", "torch", "after"), list(_documented()))
def test_the_guide_shows_what_is_written(before: str, style: Style, torch: str, after: str) -> None:
    document = read(Path("a.py"), f"import os\nimport torch\nimport torch.distributed as dist\n{before}\n".encode())
    change, _ = migrate_document(document, _REWRITING, Goal(style, oldest_torch=torch))
    written = ast.parse(change.after if change else document.text).body[-1 - before.count(";") :]
    assert [ast.unparse(statement) for statement in written] == [ast.unparse(node) for node in ast.parse(after).body]
