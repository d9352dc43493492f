"""Single changes of a migration, taken or dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.migrate.migration import Migration, migrate
from npukit.studio.hunks import chosen, hunks, shown, with_hunks

SOURCE = """import torch

x = torch.ones(3).cuda()
y = 1
z = 2
if y:
    x = x.cuda()
"""


def migration(folder: Path, name: str, text: str) -> Migration:
    (folder / name).write_text(text)
    return migrate(folder)


def test_a_dropped_hunk_stays_as_it_was(tmp_path: Path) -> None:
    made = migration(tmp_path, "train.py", SOURCE)
    change = made.changes[0]
    count = len(hunks(change))
    assert count == 2, "the device with the first use below it, and the second use"
    assert with_hunks(change, range(count)) is change
    without_last = chosen(made, {"train.py": [count - 1]}).changes[0].after
    assert "    x = x.cuda()\n" in without_last and "ones(3).cuda()" not in without_last
    assert chosen(made, {"train.py": list(range(count))}).changes == ()
    assert change.after == with_hunks(change, range(count)).after


def test_what_is_shown_is_what_is_written(tmp_path: Path) -> None:
    change = migration(tmp_path, "train.py", SOURCE).changes[0]
    after = change.after.split("\n")
    for hunk in shown(change):
        new = [other for _, other in hunk["rows"] if other is not None]
        assert after[hunk["after"] - 1 : hunk["after"] - 1 + len(new)] == new


def test_cells_of_a_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for source in (["import torch\n", "x = torch.ones(2).cuda()\n"], ["print(x)\n", "y = x.cuda()"])
    ]
    book = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
    made = migration(tmp_path, "book.ipynb", book)
    numbers = [hunk["cell"] for hunk in shown(made.changes[0])]
    assert set(numbers) == {0, 1}
    second = shown(made.changes[0])[-1]
    assert second["before"] == second["after"] == 1, "lines are those of the cell"
    assert [old for old, _ in second["rows"]] == ["print(x)", "y = x.cuda()"]
    last = len(numbers) - 1
    kept = json.loads(chosen(made, {"book.ipynb": [last]}).changes[0].after)
    assert kept["cells"][1]["source"] == cells[1]["source"] and ".cuda()" not in "".join(kept["cells"][0]["source"])


def test_what_no_longer_parses_is_refused(tmp_path: Path) -> None:
    change = migration(tmp_path, "train.py", SOURCE).changes[0]
    broken = type(change)(change.path, "a = 1\nb = 2\nc = 3\nd = 4\n", "(a :=\nb = 2\nc = 3\n1)\n", "utf-8", ())
    with pytest.raises(NpukitError):
        with_hunks(broken, [0])
