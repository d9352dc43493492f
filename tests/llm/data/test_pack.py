"""Packing: no row lost, doubled or split; the same packs from the same seed; full packs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.llm.data.pack import pack


@given(st.lists(st.integers(1, 50), max_size=300), st.integers(50, 90), st.integers(0, 5))
def test_every_row_is_in_one_pack(lengths: list[int], capacity: int, seed: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    packs = pack(array, capacity, seed)
    assert sorted(packs.rows.tolist()) == list(range(len(lengths)))
    sums = [int(array[packs[number]].sum()) for number in range(len(packs))]
    assert all(0 < filled <= capacity for filled in sums) and sum(sums) == sum(lengths)
    again = pack(array, capacity, seed)
    assert again.rows.tolist() == packs.rows.tolist() and again.starts.tolist() == packs.starts.tolist()


def test_the_seed_decides_the_company() -> None:
    lengths = np.full(100, 10)
    packs = [pack(lengths, 40, seed) for seed in (1, 2)]
    companies = [{frozenset(pack[number].tolist()) for number in range(len(pack))} for pack in packs]
    assert companies[0] != companies[1]


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="row of 9 tokens"):
        pack(np.array([3, 9]), 8, 0)


def test_usual_rows_fill_the_packs() -> None:
    lengths = np.random.default_rng(0).lognormal(5.6, 0.8, 200_000).astype(np.int64).clip(1, 4096)
    packs = pack(lengths, 4096, 0)
    assert lengths.sum() / (len(packs) * 4096) > 0.98
