"""Batches: borders of packed rows, padding, and how many labels count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npukit.llm.data.collate import Collator, weight
from npukit.llm.data.pack import pack
from npukit.llm.data.rows import inputs_and_labels, packed_row

PAD = 0
row_strategy = st.lists(
    st.integers(1, 50).flatmap(lambda token: st.sampled_from([token, ~token])), min_size=1, max_size=12
)


def loose(row: list[int]) -> dict[str, np.ndarray]:
    ids, labels = inputs_and_labels(np.array(row, dtype=np.int32))
    return {"input_ids": ids, "labels": labels}


def test_a_packed_batch_is_one_row_with_borders() -> None:
    rows = [np.array(row, dtype=np.int32) for row in ([~5, 6, 7], [8, 9], [~1, ~2, 3, 4])]
    packs = [packed_row(rows[:2], 6, PAD), packed_row(rows[2:], 6, PAD)]
    batch = Collator(joined=True, pad_id=PAD, pack_length=6)(packs)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9, -100, -100, -100, 3, 4, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 1]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 5, 6, 10, 12] and batch["cu_seqlens"].dtype == torch.int32
    assert batch["row_ends"] == (3, 5, 6, 10, 12)
    assert batch["max_length"] == 4 and weight(batch) == 5 and batch["row_length"] is None
    assert Collator(joined=True, pad_id=PAD, pack_length=6, finds_labels=True)(packs)["label_at"].tolist() == [
        0,
        1,
        3,
        7,
        8,
    ]


def test_packs_of_one_row_each_are_rows_of_one_length() -> None:
    packs = [packed_row([np.arange(1, 7, dtype=np.int32)], 6, PAD)] * 2
    assert Collator(joined=True, pad_id=PAD, pack_length=6)(packs)["row_length"] == 6


def test_loose_rows_are_never_of_one_length() -> None:
    # Another attention would be compiled for the few batches whose rows happen to be.
    batch = Collator(joined=True, pad_id=PAD)([loose(list(range(1, 33)))])
    assert batch["row_ends"] == (32, 64) and batch["row_length"] is None


def test_rows_that_are_not_packed_are_joined_with_one_that_does_not_count() -> None:
    batch = Collator(joined=True, pad_id=PAD)([loose([~5, 6, 7]), loose([8, 9])])
    assert batch["row_ends"] == (3, 5, 64) and batch["input_ids"].shape == (1, 64)
    assert batch["input_ids"][0, :6].tolist() == [5, 6, 7, 8, 9, PAD] and weight(batch) == 3
    assert Collator(joined=True, pad_id=PAD)([loose(list(range(1, 65)))])["row_ends"] == (64, 128)


def test_a_padded_batch() -> None:
    batch = Collator(joined=False, pad_id=PAD)([loose([~5, 6, 7]), loose([8])])
    assert batch["input_ids"].shape == (2, 8)
    assert batch["input_ids"].tolist()[1] == [8, *[0] * 7]
    assert batch["attention_mask"].sum(1).tolist() == [3, 1]
    two = Collator(joined=False, pad_id=PAD, finds_labels=True)([loose([~5, 6, 7]), loose([8, 9])])
    assert two["label_at"].tolist() == [0, 1, 8]
    assert batch["labels"].tolist()[0] == [-100, 6, 7, *[-100] * 5] and weight(batch) == 2
    assert Collator(joined=False, pad_id=PAD, multiple=1)([loose([1, 2, 3])])["input_ids"].shape == (1, 3)


@given(st.lists(row_strategy, min_size=1, max_size=30))
def test_packed_and_unpacked_count_the_same_labels(rows: list[list[int]]) -> None:
    arrays = [np.array(row, dtype=np.int32) for row in rows]
    packs = pack(np.array([len(row) for row in rows]), 16, seed=0)
    packed = [packed_row([arrays[row] for row in packs[number]], 16, PAD) for number in range(len(packs))]
    one = Collator(joined=True, pad_id=PAD, pack_length=16)(packed)
    other = Collator(joined=False, pad_id=PAD)([loose(row) for row in rows])
    assert weight(one) == weight(other)
    shifted = one["labels"][0, 1:]
    assert weight(one) == int((shifted != -100).sum()), "shifting loses none"


def test_packs_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="not 8 each"):
        Collator(joined=True, pad_id=PAD, pack_length=8)([packed_row([np.array([1, 2], dtype=np.int32)], 6, PAD)])
