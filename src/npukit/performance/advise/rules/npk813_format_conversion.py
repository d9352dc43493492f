"""TransData: tensors are converted between ND or NCHW and the card's private formats (NC1HWC0, FRACTAL_NZ, FRACTAL_Z).

Convolutions and some matrix products work in a private format. Where the operators between them do not, each tensor is
converted there and back in every step.

example:
    torch.npu.config.allow_internal_format = False    # before the model is built
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Work

rule = Rule(
    "NPK813",
    "format-conversion",
    devices=("npu",),
    why="Converting formats moves whole tensors and computes nothing.",
    remedy="Set torch.npu.config.allow_internal_format = False before the model is built and measure again; with "
    "fp16 or bf16 half as much is moved; keep convolutions next to each other, without reshapes in between.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    conversions = [kernel for kernel in rank.of(Work.compute) if kernel.type == "TransData"]
    if not conversions:
        return
    ms = rank.time_of(conversions)
    share = 100 * ms / (rank.time_of(rank.of(Work.compute, Work.aicpu)) or 1)
    formats = Counter(kernel.formats[0] for kernel in conversions if kernel.formats)
    origin = f", mostly from {formats.most_common(1)[0][0]}" if formats else ""
    line = next((kernel.stack for kernel in conversions if kernel.stack), "")
    yield rule.advice(
        rank, f"TransData takes {ms:.2f} ms of each step, {share:.0f}% of the computation", ms,
        f"{len(conversions) / rank.steps:.0f}x per step{origin}", Confidence.high, line=line,
    )  # fmt: skip
