"""The order of the data: every row once an epoch, the same from any start, whoever makes the batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

from npukit.errors import NpukitError
from npukit.train.data import Batch, Data, Position, Split

CPU = torch.device("cpu")
ROWS = 23


class Rows:
    """Rows with a random part."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[int, float]:
        return row, torch.rand(()).item()


class Stream(IterableDataset[tuple[int, float]]):
    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return ((row, float(self.epoch)) for row in range(ROWS))


def make(rows: Any, rank: int = 0, world_size: int = 1, batch_size: int = 2, **options: Any) -> Data:
    split = Split(batch_size, 2, rank, world_size)
    return Data(rows, split, CPU, collate=default_collate, weight=lambda batch: len(batch[0]), **{"seed": 1, **options})


def take(data: Data, steps: int, start: Position | None = None) -> list[list[Batch]]:
    return list(itertools.islice(data.steps(*([start] if start else [])), steps))


def rows_of(steps: list[list[Batch]]) -> list[int]:
    return [row for step in steps for batch in step if batch.weight for row in batch.content[0].tolist()]


@pytest.mark.parametrize("rows", [Rows(), Stream()])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_has_every_row_once_on_all_ranks_together(rows: Any, world_size: int) -> None:
    shares = [take(make(rows, rank, world_size, epochs=1, shuffle=True), 100) for rank in range(world_size)]
    assert sorted(row for share in shares for row in rows_of(share)) == list(range(ROWS))
    # Ranks keep pace: as many steps, and as many batches in each.
    assert len({tuple(len(step) for step in share) for share in shares}) == 1
    assert all(share[-1][-1].ends_epoch and not share[0][-1].ends_epoch for share in shares)
    assert sum(batch.weight for share in shares for step in share for batch in step) == ROWS


def test_steps_that_repeat_rows_can_be_resumed_between_repeats() -> None:
    def read(start: Position) -> list[tuple[list[int], bool]]:
        making: dict[str, Any] = {"collate": list, "weight": len, "seed": 1, "shuffle": True, "workers": 0, "epochs": 1}
        data = Data(list(range(10)), Split(4, 1, 0, 1), torch.device("cpu"), repeats=2, **making)
        assert data.steps_per_epoch == 6
        return [(step[0].content, step[0].ends_epoch) for step in data.steps(start)]

    steps = read(Position())
    assert [len(rows) for rows, _ in steps] == [4, 4, 4, 4, 2, 2] and steps[0][0] == steps[1][0] != steps[2][0]
    assert [ends for _, ends in steps] == [False] * 5 + [True]
    assert read(Position(0, 3)) == steps[3:]


def test_a_step_has_the_same_rows_however_many_ranks_share_it() -> None:
    alone = take(make(Rows(), batch_size=4, shuffle=True), 6)
    shared = [take(make(Rows(), rank, 2, shuffle=True), 6) for rank in range(2)]
    for step in range(6):
        together = [*rows_of([shared[0][step]]), *rows_of([shared[1][step]])]
        assert sorted(rows_of([alone[step]])) == sorted(together)


@pytest.mark.parametrize("rows", [Rows(), Stream()])
@pytest.mark.parametrize("start", [Position(0, 3), Position(1, 0), Position(2, 5)])
def test_it_goes_on_from_any_place_with_the_same_rows_and_random_numbers(rows: Any, start: Position) -> None:
    steps_per_epoch = 6
    whole = take(make(rows, shuffle=True), 25)
    rest = take(make(rows, shuffle=True), 5, start)
    expected = whole[start.epoch * steps_per_epoch + start.step :][:5]
    for step, wanted in zip(rest, expected, strict=True):
        for batch, same in zip(step, wanted, strict=True):
            assert torch.equal(batch.content[0], same.content[0]) and torch.equal(batch.content[1], same.content[1])
            assert batch.ends_epoch == same.ends_epoch


def test_epochs_differ_and_the_order_is_the_seeds() -> None:
    steps = take(make(Rows(), shuffle=True), 12)
    first, second = rows_of(steps[:6]), rows_of(steps[6:])
    assert first != second and sorted(first) == sorted(second)
    assert rows_of(take(make(Rows(), shuffle=True, seed=2), 6)) != first
    assert rows_of(take(make(Rows()), 6)) == list(range(ROWS))


def test_random_rows_do_not_depend_on_workers_nor_touch_the_models_random_numbers() -> None:
    torch.manual_seed(5)
    here = take(make(Rows(), workers=0), 6)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    elsewhere = take(make(Rows(), workers=2), 6)
    assert torch.equal(drawn, torch.rand(3))
    for step, same in zip(here, elsewhere, strict=True):
        assert all(torch.equal(a.content[1], b.content[1]) for a, b in zip(step, same, strict=True))


def test_workers_load_no_more_ahead_than_a_step_needs() -> None:
    split = Split(2, 64, 0, 1)
    data = Data(Rows(), split, CPU, collate=default_collate, weight=len, seed=1, workers=2)
    assert data._loader.prefetch_factor == 33


def test_the_thread_that_pins_memory_takes_no_cores_from_autograd(simulated: Any) -> None:
    code = """
        import torch
        from torch.utils.data import default_collate
        from npukit.train.data import Data, Split

        if __name__ == "__main__":
            torch.set_num_threads(3)
            seen = []
            x = torch.ones(1, device="npu", requires_grad=True)
            x.register_hook(lambda gradient: seen.append(torch.get_num_threads()))  # in autograd's thread
            data = Data([1.0] * 4, Split(2, 1, 0, 1), x.device, collate=default_collate, weight=len, seed=1, workers=1)
            step = next(data.steps())
            assert step[0].content.is_pinned()
            (x * 2).sum().backward()
            print(seen)
    """
    assert simulated(code) == "[3]"


def test_no_rows_is_said() -> None:
    with pytest.raises(NpukitError, match="no rows"):
        make([])
