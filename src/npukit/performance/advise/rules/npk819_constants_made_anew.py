"""The same tensor is created in every step: a mask, positions, an index, a table.

It depends neither on the batch nor on the parameters nor on random numbers, so it can be created once.

example:
    self.register_buffer("mask", torch.triu(torch.full((length, length), float("-inf")), 1), persistent=False)
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.lines import operator_of, shown, time_by_line
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule

rule = Rule(
    "NPK819",
    "constants-made-anew",
    needs=("kernels", "script"),
    why="What is the same in every step is computed, and often copied to the device, again and again.",
    remedy="Create it once: in __init__ with register_buffer(..., persistent=False), before the loop, or once for "
    "each length.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    lines = time_by_line(
        rank,
        lambda operator: operator.direct and operator.constant == operator.calls,
        lambda work, operators: operator_of(work) in operators,
    )
    always = {operator.line for operator in rank.script.operators if operator.constant == operator.calls}
    always -= {operator.line for operator in rank.script.operators if operator.constant < operator.calls}
    for line, ms in rank.lines_of(rank.host_waits["launch"]).items():
        if line in always and line in lines:
            lines[line] += ms
    if ms := sum(lines.values()):
        lines = dict(sorted(lines.items(), key=lambda item: -item[1]))
        what = f"Tensors that are the same in every step are created again, which takes {ms:.1f} ms of each"
        yield rule.advice(rank, what, ms, shown(lines, rank), line=next(iter(lines)))
