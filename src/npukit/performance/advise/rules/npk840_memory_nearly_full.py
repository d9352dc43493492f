"""The device's memory is nearly full at its peak.

The next longer batch, or a step with more fragmentation, ends in an out-of-memory error.

example:
    npukit plan sft.yaml --fit
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.facts.cards import cards
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK840",
    "memory-nearly-full",
    needs=("memory",),
    devices=("npu",),
    why="Beside PyTorch's allocator the process holds 1.5 to 2 GB for communication and the runtime.",
    remedy="Use activation checkpointing, a smaller micro-batch or a higher ZeRO stage; `npukit plan` shows what "
    "each saves.",
)
FULL = 0.92


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    held = max(rank.trace.process_memory, max((sample.reserved for sample in rank.trace.memory), default=0))
    name = rank.trace.device_name.removeprefix("Ascend")
    card = next((card for card in cards().values() if card.name == name), None)
    if card and held > FULL * card.memory_mib * 2**20:
        what = f"{held / 2**30:.1f} of {card.memory_mib / 1024:.0f} GiB are in use at the peak"
        yield rule.advice(rank, what, 0.0, f"card {card.name}", Confidence.medium)
