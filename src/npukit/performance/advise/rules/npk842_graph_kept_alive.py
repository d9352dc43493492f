"""Graphs of earlier steps stay in memory, because something holds a tensor that was computed by them.

`losses.append(loss)` and `total += loss` keep the whole graph of every step, with the activations that it saved:
memory grows from step to step until it is full. This counts the nodes of all graphs that are alive after a step.

example:
    losses.append(loss.detach())
    total += loss.item()
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.report import Severity

rule = Rule(
    "NPK842",
    "graph-kept-alive",
    needs=("script",),
    why="Memory that is never freed has to be allocated again in each step, and the run fails when none is left.",
    remedy="Keep loss.detach() or loss.item() instead of the loss, and detach whatever goes from one step to the next.",
)
FEW = 2  # nodes


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    kept = rank.script.kept
    if not kept or kept["nodes"] < FEW:
        return
    name, size = kept["name"], max(0.0, kept["bytes"]) / 1e6
    evidence = f"{kept['nodes']:.0f} more nodes and {size:.1f} MB more after each step"
    evidence += f", kept in `{name}`" if name else ""
    confidence = Confidence.high if name else Confidence.medium
    what = "The graph of every step stays in memory"
    yield rule.advice(rank, what, 0.0, evidence, confidence, line=kept["line"], severity=Severity.error)
