"""Matrix products whose sizes are no multiple of the tile.

The cube units of an NPU, and tensor cores, work on blocks of 16 x 16. A dimension such as 50257 is padded to the next
multiple, and its rows start at addresses that load slowly. The possible gain is estimated from the products of this
profile whose sizes do fit.

example:
    model.resize_token_embeddings(pad_to_multiple_of=64)      # 50257 words become 50304
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.flops import flops_of, is_product, matrices
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Kernel, Work

rule = Rule(
    "NPK820",
    "off-tile",
    needs=("kernels", "shapes", "card"),
    devices=("npu", "cuda"),
    why="Padded blocks compute zeros, and unaligned rows are loaded in smaller pieces.",
    remedy="Make the dimensions multiples of 64 (128 for attention heads on NPUs): pad the vocabulary, the hidden "
    "size, the sequence.",
)
TILE = 16
LARGE = 1e8  # operations below which a product is all overhead anyway


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    products = [kernel for kernel in rank.of(Work.compute) if is_product(kernel) and flops_of(kernel) > LARGE]
    off = [kernel for kernel in products if _is_off(kernel)]
    fitting = [kernel for kernel in products if not _is_off(kernel)]
    if not off or not fitting:
        return
    by_shapes: dict[tuple[tuple[int, ...], ...], list[Kernel]] = {}
    for kernel in off:
        by_shapes.setdefault(matrices(kernel), []).append(kernel)
    usual = _rate(fitting)
    for shapes, kernels in by_shapes.items():
        rate = _rate(kernels)
        if rate >= usual:
            continue
        ms = rank.time_of(kernels) * (1 - rate / usual)
        sizes = " by ".join("x".join(map(str, shape)) for shape in shapes)
        what = f"{sizes} does not fit the tile of {TILE}"
        evidence = f"{rate / 1e12:.1f} TFLOP/s, {usual / 1e12:.1f} where sizes fit"
        line = next((kernel.stack for kernel in kernels if kernel.stack), "")
        yield rule.advice(rank, what, ms, evidence, Confidence.medium, line=line, subject=sizes)


def _is_off(kernel: Kernel) -> bool:
    return any(size % TILE for shape in matrices(kernel) for size in shape[-2:])


def _rate(kernels: list[Kernel]) -> float:
    return sum(map(flops_of, kernels)) / max(1, sum(kernel.duration for kernel in kernels)) * 1e9
