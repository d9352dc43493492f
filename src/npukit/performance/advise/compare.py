"""Compare two profiles of a job, from two versions or devices: what became slower, and by how much."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npukit.performance.advise.rank import Rank, RankSplit, split_of
from npukit.performance.read.model import Kernel, Work

MIN_PERCENT = 0.5
# Common names for operators of CUDA and NPUs, by the framework's operator if it is known.
SAME = {
    "matmul": ("matmul", "mm", "addmm", "bmm", "linear", "baddbmm", "gemm"),
    "attention": ("attention", "flash", "sdpa", "fmha"),
    "convolution": ("conv",),
    "normalisation": ("norm",),
    "optimizer": ("adam", "sgd", "_foreach", "_fused", "applymomentum", "multi_tensor_apply"),
    "softmax and loss": ("softmax", "nll_loss", "cross_entropy"),
    "rotary embedding": ("rotary", "rope"),
    "embedding and indexing": ("embedding", "index", "gather", "scatter", "unsorted"),
    "casts and copies": ("cast", "copy_", "transdata", "transpose", "memcpy", "memset", "clone", "contiguous", "cat"),
    "random numbers": ("dropout", "rand", "normal_"),
    "reductions": ("reduce", "sum", "mean", "amax"),
}
OTHER = "other element-wise"


@dataclass(frozen=True)
class ProfileChange:
    """A kind of operator before and after, in milliseconds per step."""

    name: str
    before: float
    after: float
    calls_before: float
    calls_after: float
    percent: float  # share of the first profile's step

    @property
    def ms(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class ProfileComparison:
    """What changed between two profiles."""

    before: RankSplit
    after: RankSplit
    parts: tuple[ProfileChange, ...]  # of the step's split
    kinds: tuple[ProfileChange, ...]  # changes of operators, the largest first
    operators: tuple[ProfileChange, ...]


def compared(before: Rank, after: Rank) -> ProfileComparison:
    """What changed from one rank's profile to another's.

    >>> compared(gpu, npu).kinds[0].name
    'attention'
    """
    return ProfileComparison(
        split_of(before),
        split_of(after),
        tuple(_parts(before, after)),
        _changes(before, after, kind_of),
        _changes(before, after, _operator),
    )


def _parts(before: Rank, after: Rank) -> Sequence[ProfileChange]:
    step = before.split.step or 1.0
    changes = []
    for name in ("compute", "communication", "copy", "host", "idle"):
        old, new = (getattr(rank.split, name) or 0.0 for rank in (before, after))
        if max(old, new) > 0:
            changes.append(ProfileChange(name, old, new, 1, 1, 100 * (new - old) / step))
    return changes


def _changes(before: Rank, after: Rank, name_of: Callable[[Kernel], str]) -> tuple[ProfileChange, ...]:
    old, new = _summed(before, name_of), _summed(after, name_of)
    step = before.split.step or 1.0
    changes = []
    for name in old.keys() | new.keys():
        (ms, calls), (ms_after, calls_after) = old.get(name, (0.0, 0.0)), new.get(name, (0.0, 0.0))
        percent = 100 * (ms_after - ms) / step
        if abs(percent) >= MIN_PERCENT:
            changes.append(ProfileChange(name, ms, ms_after, calls, calls_after, percent))
    return tuple(sorted(changes, key=lambda change: -abs(change.ms)))


def _summed(rank: Rank, name_of: Callable[[Kernel], str]) -> dict[str, tuple[float, float]]:
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in rank.kernels:
        groups[name_of(kernel)].append(kernel)
    return {name: (rank.time_of(kernels), len(kernels) / rank.steps) for name, kernels in groups.items()}


def kind_of(kernel: Kernel) -> str:
    """The kind of work of a kernel, independent of its name.

    >>> kind_of(Kernel("aclnnMatmul_MatMulV3", "MatMulV3", Work.compute, 0, 1))
    'matmul'
    """
    if kernel.work is Work.communication:
        return "communication"
    for text in (kernel.op.rpartition("::")[2].lower(), kernel.type.lower(), kernel.name.lower()):
        known = next((kind for kind, words in SAME.items() if text and any(word in text for word in words)), None)
        if known:
            return known
    return OTHER


def _operator(kernel: Kernel) -> str:
    return kernel.op or kernel.type
