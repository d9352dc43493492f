"""Copies between the host and the device that nothing else hides.

From pageable memory a copy is slow and holds up the host as well. Copies to the host in the middle of a step are
`.cpu()`, `.numpy()`, or an operator that falls back to the CPU.

example:
    batch = batch.to(device, non_blocking=True)   # from a loader with pin_memory=True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.performance.read.model import Work

rule = Rule(
    "NPK811",
    "host-copies",
    devices=("npu", "cuda"),
    why="While data is copied and nothing is computed, the device's cores stand still.",
    remedy="Load batches with pin_memory=True and copy them with non_blocking=True; keep on the device what is used "
    "in every step; look for `.cpu()` and for operators that fall back to the CPU (`npukit analyze` names "
    "them).",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    copies = [copy for copy in rank.of(Work.copy) if "DtoD" not in copy.name and "Memset" not in copy.name]
    if not copies:
        return
    share = sum(copy.duration for copy in copies) / max(1, sum(copy.duration for copy in rank.of(Work.copy)))
    ms = rank.split.copy * share + rank.host_causes["copy"]
    names = Counter[str]()
    for copy in copies:
        names[copy.name] += copy.duration
    size = sum(copy.bytes for copy in copies) / rank.steps
    total = f", {size / 1e6:.1f} MB per step" if size else ""
    lines = Counter(copy.stack for copy in copies if copy.stack)
    what = f"Copies between host and device hold up each step by {ms:.1f} ms"
    evidence = f"{len(copies) / rank.steps:.0f}x per step, mostly {names.most_common(1)[0][0]}{total}"
    yield rule.advice(rank, what, ms, evidence, line=lines.most_common(1)[0][0] if lines else "")
