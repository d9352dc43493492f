"""Reference pages as templates: their prose is in templates/, with $names for what the code knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from string import Template

FOLDER = Path(__file__).with_name("templates")


def fill(template: str, **parts: str | Iterable[str]) -> str:
    """A template with its parts, which are texts or lines.

    >>> fill("versions.md", releases=["| 2.7.1 | 2.7.1 | 8.2.RC1 |"], pythons="").splitlines()[0]
    '# Versions of torch, torch_npu, CANN and Python'
    """
    texts = {name: part if isinstance(part, str) else "\n".join(part) for name, part in parts.items()}
    page = Template((FOLDER / template).read_text(encoding="utf-8")).substitute(texts)
    return page.rstrip("\n") + "\n"


def row(*cells: object) -> str:
    """A row of a table.

    >>> row("`--json`", "text|json")
    '| `--json` | text\\\\|json |'
    """
    texts = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"
