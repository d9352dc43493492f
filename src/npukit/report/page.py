"""Reports as self-contained HTML files: a template, the contents as data, and a script that renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def fill_page(template: str, data: Any, **parts: str) -> str:
    """Fill a template of this folder with parts of HTML, and with data for its script.

    >>> fill_page("report.html", {"findings": []}, title="my-project", verdict="Nothing to do.", facts="")
    """
    page = (_FOLDER / template).read_text(encoding="utf-8")
    script = (_FOLDER / "page.js").read_text(encoding="utf-8").rstrip("\n")
    # Otherwise "</script>" in the data would end the element that contains it.
    written = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    for name, text in {"shared": script, **parts, "data": written}.items():
        page = page.replace("{{" + name.upper() + "}}", text)
    return page
