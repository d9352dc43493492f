"""Each rule does what its docstring says: the examples there are the tests."""

from __future__ import annotations

import re
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
