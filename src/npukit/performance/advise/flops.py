"""Count the floating-point operations of kernels from their shapes."""

from __future__ import annotations

import math

from npukit.facts.peak_flops import peak_flops
from npukit.performance.read.model import Kernel, Shape, Trace

PRODUCTS = {
    "matmul",
    "matmulv2",
    "matmulv3",
    "batchmatmul",
    "batchmatmulv2",
    "batchmatmulv3",
    "mm",
    "bmm",
    "addmm",
    "linear",
}
OPERATIONS_PER_CYCLE = 8192  # operations per cycle of a cube core in fp16 or bf16


def is_product(kernel: Kernel) -> bool:
    """Whether a kernel multiplies matrices."""
    names = {kernel.type.lower(), kernel.op.rpartition("::")[2].lower()}
    return bool(names & PRODUCTS)


def matrices(kernel: Kernel) -> tuple[Shape, ...]:
    """The two matrices of a product, without the bias that addmm has before them."""
    return tuple(shape for shape in kernel.shapes if len(shape) >= 2)[:2]


def flops_of(kernel: Kernel) -> float:
    """Operations of a matrix product; 0 if its shapes do not say.

    >>> flops_of(Kernel("mm", "mm", Work.compute, 0, 1, shapes=((4, 8), (8, 2))))
    128.0
    """
    factors = matrices(kernel)
    if not is_product(kernel) or len(factors) < 2:
        return 0.0
    first, second = factors
    if kernel.outputs and len(kernel.outputs[0]) >= 2:  # either side may be transposed, so the output's shape decides
        rows, columns = kernel.outputs[0][-2:]
        return 2.0 * math.prod(kernel.outputs[0]) * math.prod(first[-2:]) / rows if rows and columns else 0.0
    if first[-1] not in second[-2:]:
        return 0.0
    inner = first[-1]
    return 2.0 * math.prod(first) * math.prod(second[-2:]) / inner if inner else 0.0


def peak_of(trace: Trace) -> float | None:
    """The device's peak in bf16 or fp16, by its name, or from the cores and the frequency in the profile."""
    known = peak_flops(trace.device_name) if trace.device_name else None
    if known or trace.device != "npu":
        return known
    frequency = max(trace.frequencies, default=0)
    return trace.cores * frequency * 1e6 * OPERATIONS_PER_CYCLE if trace.cores and frequency else None
