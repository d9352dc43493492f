"""Attention, RMS norm, a gated activation or a rotary embedding is computed by several small kernels.

torch_npu has one operator for each of these, which reads and writes the tensors once. They are recognised by the
kernels that only the written-out form has. Where `npukit profile` recorded, lines with many element-wise operators are
named too, such as a layer norm or GELU written out: torch has functions for these, and torch.compile fuses others.

example:
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = torch_npu.npu_rms_norm(x, weight, epsilon=1e-6)[0]
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.facts.affinity import fused
from npukit.facts.target import Target
from npukit.performance.advise.lines import chains
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Kernel, Work

rule = Rule(
    "NPK817",
    "unfused-operators",
    needs=("kernels",),
    why="Each small kernel reads and writes whole tensors, so that memory and launches cost more than the arithmetic.",
    remedy="Use the fused operator that the finding names.",
)
# What the written-out form runs, by kernel type or by operator; the first name must occur, with all others beside it.
PATTERNS: dict[str, tuple[frozenset[str], ...]] = {
    "attention": (
        frozenset({"softmaxv2", "softmax", "_softmax", "softmaxgrad", "_softmax_backward_data"}),
        frozenset({"batchmatmul", "batchmatmulv2", "batchmatmulv3", "bmm", "matmul"}),
    ),
    "rms_norm": (
        frozenset({"rsqrt"}),
        frozenset({"pow", "square", "pows"}),
        frozenset({"mean", "reducemean", "reducemeand"}),
    ),
    "swiglu": (frozenset({"swish", "silu", "swishgrad", "silu_backward"}), frozenset({"mul"})),
}
WRITTEN_OUT = 0.5  # of a chain's time; an estimate
WON = {"attention": 0.5, "rms_norm": 0.6, "swiglu": 0.3}  # of the first kernels' time; estimates, not measured


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    by_name: dict[str, list[Kernel]] = {}
    for kernel in rank.of(Work.compute):
        for name in {kernel.type.lower(), kernel.op.rpartition("::")[2].lower()}:
            by_name.setdefault(name, []).append(kernel)
    for pattern, parts in PATTERNS.items():
        matched = [[kernel for name in names for kernel in by_name.get(name, ())] for names in parts]
        if not all(matched) or (pattern == "attention" and not any(_is_scores(kernel) for kernel in matched[0])):
            continue
        operator = fused(pattern, Target.of())
        kernels = {
            id(kernel): kernel for part in matched[: 2 if pattern == "rms_norm" else 1] for kernel in part
        }.values()
        ms = rank.time_of(kernels) * WON[pattern]
        remedy = operator.advice if operator else ""
        line = next((kernel.stack for kernel in kernels if kernel.stack), "")
        title = pattern.replace("_", " ")
        evidence = f"{len(kernels) / rank.steps:.0f} kernels per step, such as {matched[0][0].type}"
        yield rule.advice(
            rank,
            f"{title} is computed by separate kernels",
            ms,
            evidence,
            Confidence.low,
            remedy,
            line,
            subject=pattern,
        )
    for chain in chains(rank):
        text = rank.script.text_of(chain.line)
        evidence = f"{chain.operators:.0f} of them per step" + (f", such as `{text[:60]}`" if text else "")
        what = f"Element-wise operators that follow each other take {chain.ms:.1f} ms of each step"
        remedy = "Use torch's own function for it (layer_norm, rms_norm, gelu, softplus …), or torch.compile."
        ms = chain.ms * WRITTEN_OUT
        yield rule.advice(rank, what, ms, evidence, Confidence.low, remedy, chain.line, subject=chain.line)


def _is_scores(kernel: Kernel) -> bool:
    """Whether a softmax is over attention scores: three dimensions or more."""
    return bool(kernel.shapes) and len(kernel.shapes[0]) >= 3
