"""Match the lines of a file before and after a change. This is faster than difflib for small changes that are far
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

Kind = Literal["replace", "delete", "insert", "equal"]
Block = tuple[Kind, int, int, int, int]
_AHEAD = 32  # window of lines in which two equal lines must follow a change


def blocks(old: Sequence[str], new: Sequence[str]) -> list[Block]:
    """Return the blocks of lines that are equal, replaced, inserted or deleted, named as in difflib's get_opcodes.

    >>> blocks(["a", "b"], ["a", "x", "b"])
    [('equal', 0, 1, 0, 1), ('insert', 1, 1, 1, 2), ('equal', 1, 2, 2, 3)]
    """
    opcodes: list[Block] = []
    i = j = 0
    while i < len(old) or j < len(new):
        start = i
        while (same := old[i : i + _AHEAD]) and same == new[j : j + _AHEAD]:
            i, j = i + len(same), j + len(same)
        while i < len(old) and j < len(new) and old[i] == new[j]:
            i, j = i + 1, j + 1
        if i > start:
            opcodes.append(("equal", start, i, j - i + start, j))
        if i == len(old) or j == len(new):
            gone, come = len(old) - i, len(new) - j
        else:
            gone, come = _until_equal(old[i : i + _AHEAD], new[j : j + _AHEAD])
        if not gone and not come and (i < len(old) or j < len(new)):  # a larger change than a migration makes
            rest = SequenceMatcher(None, old[i:], new[j:]).get_opcodes()
            return [*opcodes, *((kind, a + i, b + i, c + j, d + j) for kind, a, b, c, d in rest)]
        if gone or come:
            opcodes.append(("replace" if gone and come else "delete" if gone else "insert", i, i + gone, j, j + come))
        i, j = i + gone, j + come
    return opcodes


def _until_equal(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return how many lines were removed and added before the next two equal lines, or (0, 0) if there are none."""
    for total in range(1, len(old) + len(new) - 1):
        for gone in range(max(0, total - len(new) + 1), min(total, len(old) - 1) + 1):
            come = total - gone
            if old[gone] == new[come] and old[gone + 1 : gone + 2] == new[come + 1 : come + 2]:
                return gone, come
    return 0, 0
