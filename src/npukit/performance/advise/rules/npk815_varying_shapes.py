"""Operators see other shapes in each step.

This counts shapes that occur in only one step. (The column OP State says
`dynamic` for every aclnn kernel and shows nothing.) New shapes mean new tiling and kernels on an NPU, new plans for
convolutions on CUDA, recompilation under torch.compile, and an allocator that keeps asking for memory.

example:
    collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128)
    DataLoader(data, batch_size=32, drop_last=True, collate_fn=collate)
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Shape, Work

rule = Rule(
    "NPK815",
    "varying-shapes",
    needs=("kernels", "shapes"),
    why="What is prepared for one shape is of no use for another, and all ranks wait for the slowest.",
    remedy="Pad or pack batches to a few fixed lengths, sort them into buckets, and use drop_last=True.",
)
MANY = 0.1  # of a step's operators


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    steps = _shapes_by_step(rank)
    if len(steps) < 2:
        return
    seen = Counter(signature for signatures in steps.values() for signature in set(signatures))
    called = Counter(name for signatures in steps.values() for name in {name for name, _ in signatures})
    total = sum(sum(signatures.values()) for signatures in steps.values())
    alone, lonely = Counter[str](), set()
    for signatures in steps.values():
        for (name, shapes), count in signatures.items():
            if seen[name, shapes] == 1 < called[name]:
                alone[name] += count
                lonely.add((name, shapes))
    if sum(alone.values()) < MANY * total:
        return
    name = alone.most_common(1)[0][0]
    causes = rank.host_causes
    ms = causes["trace"] + causes["compile"] + causes["allocate"] + _spread(rank)
    distinct = {shapes[0] for signatures in steps.values() for op, shapes in signatures if op == name and shapes}
    evidence = f"{name} had {len(distinct)} shapes in {len(steps)} steps: {', '.join(map(str, sorted(distinct)[:3]))}"
    what = f"{100 * sum(alone.values()) / total:.0f}% of the operators have shapes that no other step has"
    yield rule.advice(rank, what, ms, evidence, Confidence.medium, line=_first_line(rank, lonely))


def _first_line(rank: Rank, lonely: set[tuple[str, tuple[Shape, ...]]]) -> str:
    """The line that first asked for a shape that no other step has."""
    kernels = [(kernel.start, kernel.stack) for kernel in rank.kernels if (kernel.type, kernel.shapes) in lonely]
    calls = [(call.start, call.stack) for call in rank.trace.ops if (call.name, call.shapes) in lonely]
    return next((line for start, line in sorted(kernels or calls) if line and start >= rank.window[0]), "")


def _shapes_by_step(rank: Rank) -> dict[int, Counter[tuple[str, tuple[Shape, ...]]]]:
    counts: dict[int, Counter[tuple[str, tuple[Shape, ...]]]] = defaultdict(Counter)
    if any(kernel.step is not None for kernel in rank.kernels):
        for kernel in rank.of(Work.compute):
            if kernel.step is not None:
                counts[kernel.step][kernel.type, kernel.shapes] += 1
        return counts
    starts = [step.start for step in rank.trace.steps]
    for call in rank.trace.ops:
        index = bisect_right(starts, call.start) - 1
        if index >= 0 and call.start < rank.trace.steps[index].end and call.shapes:
            counts[index][call.name, call.shapes] += 1
    return counts


def _spread(rank: Rank) -> float:
    """How much longer the mean step is than the shortest, in milliseconds: what uneven steps cost where ranks wait."""
    lengths = [step.end - step.start for step in rank.trace.steps]
    return (sum(lengths) / len(lengths) - min(lengths)) / 1e6 if lengths else 0.0
