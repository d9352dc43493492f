"""Matrix products reach only a small part of what the device can do.

Operations follow from the shapes, the peak from the card's name, or from the cores and the frequency in the profile.
Small products are bound by memory or by their start; skinny ones do not fill the cores.

example:
    self.qkv = nn.Linear(hidden, 3 * hidden)  # one product instead of three
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from npukit.performance.advise.flops import flops_of, is_product, matrices, peak_of
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Kernel, Work

rule = Rule(
    "NPK821",
    "low-utilisation",
    needs=("kernels", "shapes", "card"),
    devices=("npu", "cuda"),
    why="The products of a well-filled device reach 60% of its peak or more.",
    remedy="Make the products larger: a larger batch, packed sequences, one linear layer instead of several (query, "
    "key and value together), grouped instead of single products for experts.",
)
GOOD, LOW = 0.6, 0.35  # of the peak
HALF = ("float16", "bfloat16")


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    peak = peak_of(rank.trace)
    if not peak:
        return
    by_shape: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in rank.of(Work.compute):
        if is_product(kernel) and kernel.dtypes[:1] and kernel.dtypes[0] in HALF and flops_of(kernel):
            by_shape[" by ".join("x".join(map(str, shape)) for shape in matrices(kernel))].append(kernel)
    for shapes, kernels in by_shape.items():
        used = sum(map(flops_of, kernels)) / (sum(kernel.duration for kernel in kernels) or 1) * 1e9 / peak
        if used < LOW:
            ms = rank.time_of(kernels) * (1 - used / GOOD)
            what = f"{shapes} reaches {100 * used:.0f}% of the peak"
            evidence = (
                f"{len(kernels) / rank.steps:.0f}x per step, {used * peak / 1e12:.0f} of {peak / 1e12:.0f} TFLOP/s"
            )
            line = next((kernel.stack for kernel in kernels if kernel.stack), "")
            yield rule.advice(rank, what, ms, evidence, Confidence.medium, line=line, subject=shapes)
