"""Notebooks: lines that are not Python, and what people see of a change."""

from __future__ import annotations

import json
from pathlib import Path

from npukit.migrate.analysis import analyze
from npukit.migrate.migration import migrate
from npukit.report.migration_html import render
from npukit.source.notebook import Notebook


def notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_a_shell_command_that_goes_on_over_lines() -> None:
    book = Notebook(notebook("!pip install \\\n  torch \\\n  numpy\nx = 1\n%cd \\\n  ..\ny = 2\n"))
    assert [line.strip() for line in book.code.split("\n")] == ["pass", "", "", "x = 1", "pass", "", "y = 2", ""]
    assert [line for _, line, _ in book.commands] == [1, 2, 3, 5, 6]


def test_a_change_is_shown_as_cells(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(notebook("!pip install \\\n torch\nimport torch", "model.cuda()"))
    page = render(migrate(tmp_path))
    assert "# cell 1" in page and '"model.cuda()"' in page and "cell_type" not in page


def test_attention_outside_of_functions(tmp_path: Path) -> None:
    code = "import torch\nscores = q @ k.transpose(0, 1)\nout = torch.softmax(scores, -1) @ v"
    (tmp_path / "a.ipynb").write_text(notebook(code))
    assert [finding.code for finding in analyze([tmp_path]).findings] == ["NPK601"]


def test_lines_below_a_cell_that_ends_with_a_newline(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(notebook("import torch\n", "model.cuda().cuda()"))
    (change,) = migrate(tmp_path).changes
    imports = json.loads(change.after)["cells"][0]["source"]
    assert imports.startswith("import torch\n\nDEVICE = ")
