"""torch_npu's own operators on the simulated NPU against plain PyTorch, with inputs that lie oddly in memory.

    python -m benchmarks fuzz_fused

1. The project's tests of the reference kernels (tests/simulate/test_ops_*.py), which hold each against its formula,
   run again while every kernel gets its tensors with gaps, transposed, and inside larger memory that is full of NaN.
2. The table of npukit/selftest/operator_cases.py goes through torch_npu's dispatcher and autograd: in every dtype,
   strided, with other sizes and with size 0, forward and backward, against the formula on the CPU and its gradients.

Prints counts; exit code 1 on a difference or a refusal that KNOWN does not list with its cause.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks import ROOT

from npukit.simulate import activate

os.environ["OMP_NUM_THREADS"] = "1"
activate()  # before torch is imported
import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map_only  # noqa: E402

from npukit.selftest import operator_cases  # noqa: E402

TESTS = ROOT / "tests" / "simulate"
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
# The size that each size of the table becomes. Where the formula does not take it either, there is nothing to compare.
SIZES: dict[str, Callable[[int], int]] = {
    "as it is": lambda size: size,
    "larger": lambda size: 3 * size,
    "one row": lambda size: 1 if size in (2, 3, 4, 5, 6) else size,
    "empty": lambda size: 0 if size in (2, 3, 4, 5, 6) else size,
}
LITERAL = {
    "npu_grouped_matmul",
    "npu_grouped_matmul_add",
    "npu_indexing",
    "npu_lstm",
}  # whose formulas name sizes
KNOWN = {"A cache must be contiguous": "CANN refuses a paged cache with gaps"}


def with_gaps(t: Tensor) -> Tensor:
    holder = torch.full((*t.shape, 2), filler(t), dtype=t.dtype, device=t.device)
    holder[..., 0] = t
    return holder[..., 0]


def transposed(t: Tensor) -> Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def in_larger_memory(t: Tensor) -> Tensor:
    holder = torch.full((t.numel() + 14,), filler(t), dtype=t.dtype, device=t.device)
    holder[7 : 7 + t.numel()] = t.reshape(-1)
    return holder[7 : 7 + t.numel()].view(t.shape)


def filler(t: Tensor) -> Any:
    return float("nan") if t.is_floating_point() or t.is_complex() else True if t.dtype.itemsize == 1 else 77


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "with gaps": with_gaps,
    "transposed": transposed,
    "in larger memory": in_larger_memory,
}


class OddMemory:
    """A plugin of pytest: while it is there, every kernel gets its tensors in another layout."""

    def __init__(self, layout: Callable[[Tensor], Tensor]) -> None:
        self.layout, self.called, self.outcomes = layout, set[Callable[..., Any]](), collections.Counter[str]()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            known = next((cause for part, cause in KNOWN.items() if report.failed and part in report.longreprtext), "")
            self.outcomes[known or report.outcome] += 1
            if report.failed and not known:
                self.failed.append(f"{report.nodeid}: {report.longreprtext.splitlines()[-1]}")

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self.called.add(function)
            pairs: list[tuple[Tensor, Tensor]] = []

            def lay(t: Tensor) -> Tensor:
                if t.is_meta or t.dim() == 0 or t.numel() == 0 or t.layout != torch.strided or not t.is_contiguous():
                    return t
                pairs.append((t, self.layout(t)))
                return pairs[-1][1]

            arguments, options = tree_map_only(Tensor, lay, (arguments, options))
            result = function(*arguments, **options)
            with torch.no_grad():
                for original, laid in pairs:  # an operator in place
                    if not original.requires_grad:
                        original.copy_(laid)
            back = {id(laid): original for original, laid in pairs}
            return tree_map_only(Tensor, lambda t: back.get(id(t), t), result)

        return call


def run_tests(layout: str) -> bool:
    """Run the tests of the kernels in a fork of this process, whose kernels are wrapped; whether all passed."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    from npukit.simulate.ops import registry

    odd = OddMemory(LAYOUTS[layout])
    wrapped = {function: odd.wrap(function) for function in set(registry.KERNELS.values())}
    registry.KERNELS.update({name: wrapped[function] for name, function in registry.KERNELS.items()})
    for module in [module for name, module in sys.modules.items() if name.startswith(registry.__package__ or "")]:
        for name, value in list(vars(module).items()):
            if callable(value) and value in wrapped:
                setattr(module, name, wrapped[value])
    files = sorted(map(str, TESTS.glob("test_ops_*.py")))
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:npukit", *files], plugins=[odd])
    counts = ", ".join(f"{number} {outcome}" for outcome, number in odd.outcomes.items())
    print(f"tests of the kernels, {layout}: {counts}; {len(odd.called)} of {len(wrapped)} kernels called")
    print("".join(f"    {failure}\n" for failure in odd.failed), end="", flush=True)
    os._exit(int(bool(odd.failed) or not odd.called))


def through_torch_npu() -> bool:
    """The table on a simulated NPU, with torch_npu's dispatcher and gradients; whether nothing new was found."""
    counts: collections.Counter[str] = collections.Counter()
    new = 0
    for op, way, kind, how in table_findings():
        counts[kind] += 1
        if kind in ("differs", "refuses"):
            new += 1
            print(f"{op}, {way}: {kind}: {how}", flush=True)
    print("through torch_npu: " + ", ".join(f"{number:,} {kind}" for kind, number in counts.most_common()))
    return new == 0


def table_findings() -> Iterator[tuple[str, str, str, str]]:
    for sizes, change in SIZES.items():
        operator_cases.x = functools.partial(made, change)
        for case in operator_cases.CASES:
            if case.op in LITERAL and sizes != "as it is":
                continue
            for dtype in case.dtypes:
                for layout in (None, *LAYOUTS):
                    for backward in (False, True):
                        way = (sizes, layout or "contiguous", str(dtype)[6:], "backward" if backward else "forward")
                        yield case.op, ", ".join(way), *trial(case, dtype, layout, backward)


def made(change: Callable[[int], int], *shape: int) -> Tensor:
    """A tensor of a changed shape; one that holds the place of an argument which is left out has no gradients."""
    return torch.empty(0, dtype=torch.int32) if shape == (0,) else torch.randn([change(size) for size in shape])


def trial(case: Any, dtype: torch.dtype, layout: str | None, backward: bool) -> tuple[str, str]:
    """One call of an operator and of its formula: what came out, and how it differs."""

    def laid(t: Tensor) -> Tensor:
        return LAYOUTS[layout](t.npu()) if layout and t.dim() and t.numel() else t.npu()

    def ready(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
        return tree_map_only(
            Tensor, lambda t: change(t.detach()).requires_grad_(backward and t.is_floating_point()), tree
        )

    base, _, overload = case.op.partition(".")
    op = getattr(getattr(torch.ops.npu, base), overload or "default")
    torch.manual_seed(0)
    try:
        inputs = tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, case.inputs())
        widened = ready(inputs, lambda t: t.float() if t.is_floating_point() else t)
        expected = computed(case.plain, widened, {}, backward)
    except Exception as error:
        return "not taken by the formula", str(error)
    try:
        options = tree_map_only(Tensor, Tensor.npu, case.options)
        got = computed(op, ready(inputs, laid), options, backward)
    except Exception as error:
        sentence = str(error).partition("\n")[0][:160]
        without = any(part in sentence for part in ("does not require grad", "derivative for npu::", "differentiable"))
        return ("without gradients in torch_npu" if without else "refuses"), sentence
    return compared(expected, got, TOLERANCE[dtype])


def computed(function: Callable[..., Any], inputs: Any, options: dict[str, Any], backward: bool) -> list[Any]:
    """The results, or the gradients of the inputs for the first of them."""
    result = function(*inputs, **options)
    results = list(result) if isinstance(result, tuple | list) else [result]
    if not backward:
        return results
    first = tree_leaves(results)[0]
    leaves = [t for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.requires_grad]
    incoming = torch.randn(first.shape, generator=torch.Generator().manual_seed(1)).to(first)
    return list(torch.autograd.grad(first, leaves, incoming, allow_unused=True))


def compared(expected: list[Any], got: list[Any], tolerance: float) -> tuple[str, str]:
    for plain, actual in zip(expected, got, strict=True):
        if plain is None:
            continue
        if actual is None:
            return "without gradients in torch_npu", ""
        if actual.shape != plain.shape:
            return "differs", f"{tuple(actual.shape)}, {tuple(plain.shape)} expected"
        size = tolerance * max(1.0, float(plain.detach().abs().max())) if plain.numel() else 0.0
        try:
            torch.testing.assert_close(actual.detach().cpu().float(), plain.detach().float(), rtol=tolerance, atol=size)
        except AssertionError as error:
            return "differs", str(error).replace("\n", " ")[:160]
    return "equal", ""


def main() -> None:
    torch.set_num_threads(1)
    good = [run_tests(layout) for layout in LAYOUTS]
    sys.exit(not all([*good, through_torch_npu()]))
