"""Compare the ranks of one run: do they agree on what data-parallel ranks must share, and where do they stop?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError
from npukit.precision.comparing import compare_dumps
from npukit.precision.dump import Call, Dump
from npukit.precision.reading.find import find_dumps, read
from npukit.precision.result import Divergence


@dataclass(frozen=True)
class RanksComparison:
    """The ranks of a run compared with the first of them."""

    dump: str
    ranks: int
    steps: int
    rows: int  # how many rows were compared
    first: Divergence | None  # its row contains the step and rank

    @property
    def exit_code(self) -> int:
        return 0 if self.first is None else 1


def compare_ranks(dump: Path) -> RanksComparison:
    """Compare weights, reduced gradients, optimizer steps and results of collectives between ranks, bit for bit.

    >>> compare_ranks(Path("dump")).first.row.rank
    1
    """
    dumps = find_dumps(dump)
    ranks, steps = sorted({rank for _, rank in dumps}), sorted({step for step, _ in dumps})
    if len(ranks) < 2:
        raise NpukitError(f"{dump} has a single rank: capture several with --devices, and leave out --ranks.")
    rows, first = 0, None
    for step in steps:
        base = read(dumps[step, ranks[0]], step) if (step, ranks[0]) in dumps else None
        for rank in ranks[1:]:
            if base is None or (step, rank) not in dumps or first:
                continue
            compared = compare_dumps(
                _shared(base), _shared(read(dumps[step, rank], step)), None, step, rank, exact=True
            )
            rows, first = rows + compared.compared, compared.first
    return RanksComparison(str(dump), len(ranks), len(steps), rows, first)


def _shared(dump: Dump) -> Dump:
    return dataclasses.replace(dump, calls=tuple(_shared_calls(dump)))


def _shared_calls(dump: Dump) -> Iterator[Call]:
    """The calls in which data-parallel ranks must agree: weights, collectives, reduced gradients, the optimizer."""
    for call in dump.calls:
        if call.name.startswith("Distributed.") and "reduce" in call.op and "scatter" not in call.op:
            yield dataclasses.replace(call, inputs={}, given=([], {}))
        elif call.kind == "module" and call.phase == "forward":
            weights = {name: value for name, value in call.inputs.items() if name.startswith("parameters.")}
            if weights:
                yield dataclasses.replace(call, inputs=weights, outputs={})
        elif call.kind == "gradients" or call.phase == "optimizer":
            yield call
