"""Every rule on a step of 100 ms in which 20 ms are spoilt in the way that it is about: is it named, with its price?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from npukit.performance.advise.advise import judge
from npukit.performance.read.lines import OperatorAtLine, Script
from npukit.performance.read.model import Collective, HostCall, Kernel, Link, Sample, Span, Trace, Work

MS, STEP, STEPS = 1_000_000, 100, 2
SQUARE = ((4096, 4096), (4096, 4096))
RECORDED = {"kernels", "launches", "host", "shapes", "memory", "gc", "sizes", "stacks", "script"}
Make = Callable[[int], Any]  # what one step has more, given its start in ms


def kernel(kind: str, start: float, end: float, work: Work = Work.compute, **more: Any) -> Kernel:
    options = {"shapes": SQUARE, "dtypes": ("bfloat16", "bfloat16"), "launched": int(start // STEP) * STEP * MS, **more}
    return Kernel(kind, kind, work, int(start * MS), int(end * MS), **options)


def call(name: str, start: float, end: float, **more: Any) -> HostCall:
    return HostCall(name, int(start * MS), int(end * MS), **more)


def trace(
    kernels: Make = lambda at: [kernel("MatMulV2", at + 40, at + 60)],
    marks: Make = lambda at: [],
    runtime: Make = lambda at: [],
    ops: Make = lambda at: [],
    collectives: Make = lambda at: [],
    late: bool = False,
    dtypes: Sequence[str] = ("bfloat16", "bfloat16"),
    **more: Any,
) -> Trace:
    """Products before and after what `kernels` makes of the 20 ms between them.

    `late`: the host hands the second product over only after them.
    """
    result = Trace(Path("rank0"), "torch_npu", has=set(RECORDED), **more)
    for at in range(0, STEPS * STEP, STEP):
        result.steps.append(Span(at * MS, (at + STEP) * MS))
        after: dict[str, Any] = {"launched": (at + 60) * MS} if late else {}
        result.kernels += [
            kernel("MatMulV2", at, at + 40, dtypes=tuple(dtypes)),
            *kernels(at),
            kernel("MatMulV2", at + 60, at + STEP, dtypes=tuple(dtypes), **after),
        ]
        result.marks += marks(at)
        result.runtime += runtime(at)
        result.ops += ops(at)
        result.collectives += collectives(at)
    return result


def nothing(at: int) -> list[Kernel]:
    return []


def exchanging(rank: int, first: int, op: str = "allreduce", number: int = 1, size: int = 160 << 20) -> Trace:
    """A rank that exchanges from so many ms of each step on, until all ranks leave at 60."""

    def spans(at: int) -> list[tuple[float, float]]:
        length = (60 - first) / number
        return [(at + first + n * length, at + first + (n + 1) * length) for n in range(number)]

    def kernels(at: int) -> list[Kernel]:
        busy = [kernel("MatMulV2", at + 40, at + first)] if first > 40 else []
        return busy + [kernel(op, start, end, Work.communication) for start, end in spans(at)]

    return trace(
        kernels,
        collectives=lambda at: [
            Collective(op, op, int(start * MS), int(end * MS), "world", (0, 1), size) for start, end in spans(at)
        ],
        rank=rank,
        world=2,
    )


def optimizer_calls(at: int) -> list[HostCall]:
    return [call("aten::add_", at + 40 + n / 10, at + 40.05 + n / 10) for n in range(150)]


def links(slow: float) -> list[Link]:
    return [Link(0, 1, "HCCS", 1e9, 0.05), Link(0, 2, "HCCS", 1e9, 0.05), Link(0, 3, "HCCS", 1e9, slow)]


LINE = "train.py:7"


def script(op: str = "aten::clone", calls: int = 1, **more: Any) -> Script:
    """The line 7 of a script from 40 to 60 ms of each step, and line 9 for the rest."""
    facts = {"constant": 0, "direct": True, "depth": 1, "loops": (), **more}
    changes = [(at + ms, line) for at in range(0, STEPS * STEP, STEP) for ms, line in ((0, 1), (40, 0), (60, 1))]
    operators = [OperatorAtLine(LINE, op, calls, **facts)]
    return Script([LINE, "train.py:9"], ["x", "y"], [(ms * MS, line) for ms, line in changes], operators=operators)


def small_kernels(at: int) -> list[Kernel]:
    """Kernels of 50 us with 50 us between them, at line 7."""
    late = {"stack": LINE, "op": "aten::add"}
    return [
        kernel("Add", at + 40 + n / 10, at + 40.05 + n / 10, launched=int((at + 40 + n / 10) * MS), **late)
        for n in range(200)
    ]


def writes(at: int) -> Script:
    result = script()
    result.writing = frozenset({0})
    return result


HALF_TILED = ((4096, 4096), (4096, 1001))
SCORES = {"shapes": ((8, 32, 512, 512),)}
PLANTED: dict[str, tuple[float, Callable[[], Sequence[Trace]]]] = {
    "NPK801": (20, lambda: [trace(nothing, late=True)]),
    "NPK802": (20, lambda: [trace(nothing, runtime=lambda at: [call("aclrtMemcpy", at, at + 40)], late=True)]),
    "NPK803": (20, lambda: [trace(nothing, lambda at: [call("enumerate(DataLoader)#x", at + 40, at + 60)], late=True)]),
    "NPK804": (20, lambda: [trace(nothing, lambda at: [call("gc", at + 40, at + 60)], late=True)]),
    "NPK805": (20, lambda: [trace(nothing, runtime=lambda at: [call("aclrtMalloc", at + 40, at + 60)], late=True)]),
    "NPK806": (
        20,
        lambda: [trace(nothing, runtime=lambda at: [call("aclopCompileAndExecute", at + 40, at + 60)], late=True)],
    ),
    "NPK807": (20, lambda: [trace(nothing)]),
    "NPK808": (20, lambda: [trace(nothing, late=True, script=writes(0))]),
    "NPK809": (
        19.9,
        lambda: [trace(small_kernels, late=True, script=script("aten::add", 200, loops=("train.py:6",)))],
    ),
    "NPK810": (20, lambda: [trace(lambda at: [kernel("Index", at + 40, at + 60, Work.aicpu)])]),
    "NPK811": (20, lambda: [trace(lambda at: [kernel("MEMCPY_HtoD", at + 40, at + 60, Work.copy)])]),
    "NPK813": (20, lambda: [trace(lambda at: [kernel("TransData", at + 40, at + 60)])]),
    "NPK814": (20, lambda: [trace(lambda at: [kernel("Cast", at + 40, at + 60)])]),
    "NPK816": (14, lambda: [trace(marks=lambda at: [call("Optimizer.step#A", at + 40, at + 60)], ops=optimizer_calls)]),
    "NPK817": (
        5,
        lambda: [
            trace(lambda at: [kernel("SoftmaxV2", at + 40, at + 50, **SCORES), kernel("BatchMatMul", at + 50, at + 60)])
        ],
    ),
    "NPK818": (
        20,
        lambda: [
            trace(lambda at: [kernel("Transpose", at + 40, at + 60, op="aten::clone", stack=LINE)], script=script())
        ],
    ),
    "NPK819": (
        20,
        lambda: [
            trace(
                lambda at: [kernel("Triu", at + 40, at + 60, op="aten::triu", stack=LINE)],
                script=script("aten::triu", constant=1),
            )
        ],
    ),
    "NPK820": (10.2, lambda: [trace(lambda at: [kernel("MatMulV2", at + 40, at + 60, shapes=HALF_TILED)])]),
    "NPK822": (56, lambda: [trace(dtypes=("float32", "float32"))]),
    "NPK823": (100 / 6, lambda: [trace(frequencies=[1800, 1800, 900])]),
    "NPK824": (10, lambda: [trace(lambda at: [kernel("MatMulV2", at + 40, at + 60, dtypes=("float64", "float64"))])]),
    "NPK830": (20, lambda: [exchanging(0, 40), exchanging(1, 40)]),
    "NPK831": (15, lambda: [exchanging(0, 40), exchanging(1, 55)]),
    "NPK832": (75, lambda: [trace(links=links(slow=0.2), world=4)]),
    "NPK833": (20, lambda: [exchanging(0, 40, number=10, size=1024), exchanging(1, 40, number=10, size=1024)]),
    "NPK834": (15, lambda: [exchanging(0, 40, op="recv"), exchanging(1, 55, op="recv")]),
    "NPK835": (10, lambda: [trace(rank=0, world=2), trace(nothing, rank=1, world=2)]),
    "NPK840": (0, lambda: [trace(device_name="Ascend910B3", process_memory=63 << 30)]),
    "NPK841": (0, lambda: [trace(memory=[Sample(0, 20 << 30, 40 << 30)])]),
    "NPK842": (0, lambda: [trace(script=Script(kept={"nodes": 9.0, "bytes": 1e6, "name": "losses", "line": LINE}))]),
}  # fmt: skip


@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_cause_is_named_with_what_it_costs(code: str) -> None:
    ms, traces = PLANTED[code]
    advised = judge(traces())
    prices = {advice.finding.code: advice.ms for advice in advised.advice}
    assert prices.get(code) == pytest.approx(ms, rel=0.02), prices


def test_a_step_that_is_all_products_gets_no_advice() -> None:
    advised = judge([trace(frequencies=[1800] * 3, memory=[Sample(0, 30 << 30, 31 << 30)], links=links(slow=0.05))])
    assert [advice.finding.code for advice in advised.advice] == []
    assert advised.ranks[0].split.compute == pytest.approx(STEP)


@pytest.mark.parametrize("code", ["NPK801", "NPK802"])
def test_the_line_that_the_device_waits_for_is_named(code: str) -> None:
    copies = [call("aclrtMemcpy", at, at + 40) for at in range(0, STEPS * STEP, STEP)] if code == "NPK802" else []
    advice = judge([trace(nothing, runtime=lambda at: copies, late=True, script=script())]).advice[0]
    assert advice.finding.code == code
    assert advice.finding.place and (str(advice.finding.place.file), advice.finding.place.line) == ("train.py", 7)


def test_the_line_of_another_thread_is_named_if_it_runs_while_the_device_waits() -> None:
    noted = script()
    noted.elsewhere = [((at + 42) * MS, (at + 58) * MS, "batches.py:3", "z") for at in range(0, STEPS * STEP, STEP)]
    place = judge([trace(nothing, late=True, script=noted)]).advice[0].finding.place
    assert place and (str(place.file), place.line) == ("batches.py", 3)


@pytest.mark.parametrize(
    ("calls", "depth", "loops"),
    [(4, 1, ("train.py:6",)), (200, 200, ("train.py:6",)), (200, 1, ("train.py:1",)), (200, 1, ())],
    ids=["few rounds", "each needs the one before", "the loop over steps", "no loop"],
)
def test_other_loops_are_not_reported(calls: int, depth: int, loops: tuple[str, ...]) -> None:
    noted = script("aten::add", calls, depth=depth, loops=loops)
    noted.step_loops = frozenset({"train.py:1"})
    codes = [advice.finding.code for advice in judge([trace(small_kernels, late=True, script=noted)]).advice]
    assert "NPK809" not in codes and "NPK801" in codes


def test_a_loop_inside_of_one_over_layers_is_named_itself() -> None:
    """As heads that are computed one by one: the layers need each other, the heads of a layer do not."""
    outer, inner = "train.py:20", "train.py:6"
    noted = script("aten::add", 200, depth=4, loops=(outer, inner))
    noted.operators += [OperatorAtLine("train.py:21", "aten::add", 4, 0, True, depth=4, loops=(outer,))]
    advice = {advice.finding.code: advice for advice in judge([trace(small_kernels, late=True, script=noted)]).advice}
    place = advice["NPK809"].finding.place
    assert place and place.line == 6


@pytest.mark.parametrize(("names", "ms"), [(("sub", "mean", "pow", "sqrt"), 10), (("add", "mul"), None)])
def test_elementwise_operators_on_neighbouring_lines_are_named(names: tuple[str, ...], ms: float | None) -> None:
    noted, each = script(), 20 / len(names)
    noted.operators = [OperatorAtLine(LINE, f"aten::{name}_", 1, 0, True, 1, ()) for name in names]

    def kernels(at: int) -> list[Kernel]:
        begins = [at + 40 + n * each for n in range(len(names))]
        pairs = zip(names, begins, strict=True)
        return [kernel(name, begin, begin + each, op=f"aten::{name}", stack=LINE) for name, begin in pairs]

    found = [advice for advice in judge([trace(kernels, script=noted)]).advice if advice.finding.code == "NPK817"]
    assert [advice.ms for advice in found] == ([pytest.approx(ms, rel=0.02)] if ms else [])


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_torch_compile_in_each_step_is_named_with_its_line(device: str) -> None:
    """By what `npukit profile` notes; torch's own profiler shows operators that are traced as if they ran."""

    def compiled(at: int) -> list[HostCall]:
        frame = call("_compile.compile_inner (dynamo_timed)", at + 40, at + 60)
        return [frame, call("backend_compile", at + 42, at + 58), call("aten::add", at + 45, at + 55)]

    def as_kernels(at: int) -> list[Kernel]:
        return [kernel(op.name, op.start / MS, op.end / MS) for op in compiled(at)] if device == "cpu" else []

    noted = script()
    if device == "npu":
        noted.compiled = [((at + 40) * MS, (at + 60) * MS) for at in range(0, STEPS * STEP, STEP)]
    recorded = trace(as_kernels, ops=compiled if device == "cpu" else nothing, late=True, script=noted, device=device)
    (advice,) = [advice for advice in judge([recorded]).advice if advice.finding.code == "NPK806"]
    assert advice.ms == pytest.approx(20, rel=0.02) and "compilations per step" in advice.finding.evidence
    assert advice.finding.place and advice.finding.place.line == 7


def test_a_first_step_that_allocates_is_no_finding() -> None:
    result = trace(nothing, runtime=lambda at: [call("aclrtMalloc", at + 40, at + 60)] if not at else [], late=True)
    longer = 900 * MS
    result.steps = [Span(-longer, result.steps[0].end), result.steps[1]]
    assert "NPK805" not in {advice.finding.code for advice in judge([result]).advice}
