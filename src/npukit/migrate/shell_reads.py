"""Migrate shell scripts that read CUDA's variables, so that they also work if only the NPU's variable is set.

before:  gpus="${CUDA_VISIBLE_DEVICES:-0}"
after:   gpus="${ASCEND_RT_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-0}}"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from npukit.source import Edit

_COMMAND = re.compile(r"[;&|`(]|\b(?:then|do|else)\b")
_SAYS = re.compile(r"\s*(?:echo|printf)\s")
_ASKS = re.compile(r"""-[zn]\s+["']?$""")
_WITH_DEFAULT = ("-", ":-", "?", ":?")


def rename_variables(value: str, old: str, new: str) -> str:
    """Return a value that reads the variable it sets, rewritten for another variable.

    >>> rename_variables("${A:-0}", "A", "B")
    '${B:-0}'
    """
    return re.sub(rf"(\$\{{?){old}\b", rf"\g<1>{new}", value)


def variable_reads(text: str, names: Mapping[str, str]) -> Iterator[tuple[tuple[int, int], str, Edit | None]]:
    """Yield where a script reads a variable, its name, and the edit, or None if no expression can read either."""
    words = "|".join(names)
    for match in re.finditer(rf"\$(?:({words})\b|\{{[#!]?({words})\b((?:[^{{}}\n]|\{{[^{{}}\n]*\}})*)\}})", text):
        old = match[1] or match[2]
        yield match.span(), old, _edit(match, names[old], text)


def _edit(match: re.Match[str], new: str, text: str) -> Edit | None:
    if text[: match.start()].endswith("\\") or match[0][2:3] in "#!":
        return None
    how = re.match(r":?[-+?=]|", match[3] or "")[0]  # type: ignore[index]
    if how in ("+", ":+") and _ASKS.search(text, text.rfind("\n", 0, match.start()) + 1, match.start()):
        how = "-"
    if match[3] and how not in _WITH_DEFAULT:
        return None
    old = match[0] if match[3] else f"${match[1] or match[2]}"
    return Edit(*match.span(), f"${{{new}:-{old}}}")


def is_printed(start: int, end: int, text: str) -> bool:
    """Return whether a variable is only printed, as in `echo "on $CUDA_VISIBLE_DEVICES"`."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    rest = text[end:].split("\n", 1)[0]
    commands = list(_COMMAND.finditer(before))
    last = commands[-1] if commands else None
    is_value = last is not None and last[0] in "`("
    return bool(_SAYS.match(before, last.end() if last else 0)) and not is_value and not re.search(r"[|>]", rest)


def is_counted(name: str, text: str) -> bool:
    """Return whether a script sets a variable without `=` and nothing sets the NPU's variable with it.

    >>> is_counted("A", "for A in 0 1; do")
    True
    """
    command = r"(?:for|select|read|mapfile|readarray|printf -v)"
    return bool(re.search(rf"^[^#\n]*\b{command}\b[^#\n;|&$]*?[\s=]{name}\b(?!=)", text, re.MULTILINE))


def is_within(start: int, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether an offset lies in one of these ranges."""
    return any(first <= start < last for first, last in spans)
