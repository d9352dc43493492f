"""Matrix products, convolutions and attention in float32.

In fp16 or bf16 the cube units of an NPU are about four times as fast, and tensor cores eight times or more, with half
the memory traffic.

example:
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = model(batch).loss
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.performance.advise.flops import is_product
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Kernel, Work

rule = Rule(
    "NPK822",
    "float32-products",
    needs=("kernels", "shapes", "card"),
    devices=("npu", "cuda"),
    why="Most models train as well in bf16 with weights in float32 (mixed precision).",
    remedy="Wrap forward and loss in torch.autocast(device, dtype=torch.bfloat16). If float32 has to stay: on CUDA "
    'torch.set_float32_matmul_precision("high"), on an NPU torch.npu.matmul.allow_hf32 = True.',
)
HEAVY = ("conv", "cudnn_convolution", "flashattention", "fusedattention", "scaled_dot_product")
TENSOR_CORES = re.compile("tf32|s1688|s16816")  # how CUDA's kernels for TF32 are called
WON = 0.7  # of their time; a quarter is the card's data sheet, and not all of it is reached


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    heavy = [kernel for kernel in rank.of(Work.compute) if _is_heavy(kernel, rank.trace.device)]
    wide = [kernel for kernel in heavy if kernel.dtypes[:1] == ("float32",)]
    products = [kernel for kernel in wide if not TENSOR_CORES.search(kernel.name)]
    if not products:
        return
    time = rank.time_of(products)
    longest = max(products, key=lambda kernel: kernel.duration)
    evidence = f"{len(products) / rank.steps:.0f} per step take {time:.1f} ms, such as {longest.type}"
    what = "Matrix products are computed in float32"
    yield rule.advice(rank, what, time * WON, evidence, Confidence.medium, line=longest.stack)


def _is_heavy(kernel: Kernel, device: str) -> bool:
    """An NPU's kernels say what they are; those of a GPU have names of their own, and the operator tells."""
    name = kernel.type if device == "npu" else kernel.op.rpartition("::")[2]
    return is_product(kernel) or name.lower().startswith(HEAVY)
