"""A loop in Python does the same small work for one row, sample, graph or parameter after the other.

The iterations are independent of each other, so one operator over all of them can do the work. Loops in which each
iteration needs the one before, such as the layers of a model, are not counted.

example:
    loss = torch.clamp(scores - scores.gather(1, labels[:, None]) + 1, min=0).sum(1).mean()   # all rows at once
    torch._foreach_mul_(averages, decay)                                                      # all parameters at once
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.lines import loops
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK809",
    "python-loop",
    needs=("kernels", "script"),
    why="Each operator costs Python and the framework some ten microseconds, forward and backward, however little it "
    "computes.",
    remedy="Do the work for all rows with one operator (a batch dimension, gather, index_add, torch.func.vmap, nested "
    "or padded tensors), and for all parameters with torch._foreach_*.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    for loop in loops(rank):
        text = rank.script.text_of(loop.line)
        evidence = f"{loop.rounds} rounds per step" + (f" of `{text}`" if text else "")
        what = f"A loop in Python over independent small operators takes {loop.ms:.1f} ms of each step"
        yield rule.advice(rank, what, loop.ms, evidence, Confidence.medium, line=loop.line, subject=loop.line)
