"""Write a comparison as one self-contained HTML file: error over depth, the module tree, and every row."""

from __future__ import annotations

import html
import json
from pathlib import Path

from npukit.precision.result import Comparison, plain
from npukit.report.report import counted
from npukit.report.terminal import printable_line
from npukit.report.writing import write_text


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page.

    >>> write_page(compare(Path("gpu"), Path("npu")), Path("report.html"))
    """
    write_text(path, render(comparison))


def render(comparison: Comparison) -> str:
    """The HTML. The rows are embedded as data, and the page draws those that are looked at."""
    rows = [{**plain(row), "title": printable_line(row.title), "growth": row.growth} for row in comparison.rows]
    counts, coverage = dict(comparison.counts), comparison.coverage
    data = {"rows": rows, "first": plain(comparison.first), "counts": counts, "coverage": coverage}
    compared = f"{comparison.compared:,} of {counted(sum(counts.values()), 'row')} compared ({coverage:.0%})"
    parts = {
        "TITLE": html.escape(printable_line(f"{comparison.left} and {comparison.right}")),
        "VERDICT": f"{comparison.verdict.capitalize()}: {compared}",
        "FIRST": html.escape(printable_line(comparison.first.what)) if comparison.first else "",
        # Otherwise "</script>" in the data would end the element that contains it.
        "DATA": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    return page
