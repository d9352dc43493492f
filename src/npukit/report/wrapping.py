"""Wrap text by terminal columns, of which Chinese characters take two."""

from __future__ import annotations

import re
import textwrap
import unicodedata

WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\u3000-\u303f"
CLOSING = "\uff0c\u3002\uff1b\uff1a\u3001\uff01\uff1f\uff09\u300b\u300d\u201d\u2026"  # must not begin a line
PIECE = re.compile(rf"[{WIDE}][{CLOSING}]*|[^\s{WIDE}]+[{CLOSING}]*|\s+")


def columns(text: str) -> int:
    """The number of terminal columns that a text takes.

    >>> columns("NPU 卡")
    6
    """
    return len(text) + sum(
        unicodedata.east_asian_width(character) in "WF" for character in text if not character.isascii()
    )


def padded(text: str, width: int) -> str:
    """The text padded with spaces to this many columns."""
    return text + " " * (width - columns(text))


def wrap(text: str, width: int, initial_indent: str = "", subsequent_indent: str = "") -> list[str]:
    """Wrap a paragraph into lines.

    >>> wrap("在模拟NPU上运行。", 10)
    ['在模拟NPU', '上运行。']
    """
    if not re.search(f"[{WIDE}]", text):
        wrapper = textwrap.TextWrapper(width, initial_indent, subsequent_indent, break_on_hyphens=False)
        return wrapper.wrap(text)
    lines, line = [], initial_indent
    for piece in PIECE.findall(" ".join(text.split())):
        if columns(line) + columns(piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = subsequent_indent
        if line.strip() or piece.strip():
            line += piece if line != subsequent_indent or not lines else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() else lines
