"""Lines are aligned as difflib would, whatever changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from npukit.migrate.line_blocks import blocks

LINES = st.lists(st.sampled_from("abc"), max_size=50)


@given(LINES, LINES)
def test_blocks_make_the_new_lines_of_the_old(old: list[str], new: list[str]) -> None:
    made: list[str] = []
    at = (0, 0)
    for kind, i, i_end, j, j_end in blocks(old, new):
        assert (i, j) == at and (i_end > i or j_end > j)
        made += old[i:i_end] if kind == "equal" else new[j:j_end]
        at = (i_end, j_end)
    assert made == new and at == (len(old), len(new))
