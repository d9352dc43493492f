"""The AI cores run below their highest frequency while they are busy.

Heat and power limits lower the frequency; the profile samples it.

example:
    npu-smi info -t temp -i 0
    npu-smi info -t power -i 0
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.report.report import counted

rule = Rule(
    "NPK823",
    "frequency",
    devices=("npu",),
    why="Computation takes longer in the same proportion.",
    remedy="Check temperature and power with `npu-smi info`, and the server's fans and power settings.",
)
LOWER = 0.95


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    sampled = [frequency for frequency in rank.trace.frequencies if frequency > 0]
    if len(sampled) < 3:
        return
    mean, highest = sum(sampled) / len(sampled), max(sampled)
    if mean < LOWER * highest:
        ms = rank.split.compute * (1 - mean / highest)
        evidence = f"{min(sampled)} to {highest} MHz in {counted(len(sampled), 'sample')}"
        yield rule.advice(
            rank, f"The AI cores ran at {mean:.0f} of {highest} MHz on average", ms, evidence, Confidence.medium
        )
