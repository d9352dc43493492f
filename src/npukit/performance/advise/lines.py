"""Attribute work to lines of the script: loops of small operators, chains of others, and the time by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npukit.performance.advise.rank import Rank
from npukit.performance.read.kineto import outermost
from npukit.performance.read.lines import OperatorAtLine
from npukit.performance.read.model import HostCall, Kernel, Work

MANY = 8  # iterations in a step: fewer are not worth a change
SMALL = 100_000  # ns: longer operators are work, not overhead


LINKS = 4  # different operators: fewer are not worth a function of their own
ELEMENTWISE = frozenset(
    {
        "add", "sub", "rsub", "mul", "div", "pow", "square", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "erf",
        "sigmoid", "neg", "abs", "maximum", "minimum", "clamp", "where", "sin", "cos", "mean", "sum", "var", "amax",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """Element-wise operators on neighbouring lines, with their backward passes."""

    line: str  # the one that takes longest
    operators: float  # per step
    ms: float


@dataclass(frozen=True)
class Loop:
    """A loop in Python whose iterations are independent."""

    line: str
    rounds: int
    lines: frozenset[str]  # of the loop, and of functions that it calls
    ms: float
    gaps: float  # the part of `ms` in which the device waited for the host


def loops(rank: Rank) -> list[Loop]:
    """Loops of many independent small operators, the most expensive first, without loops inside them."""
    script = rank.script
    by_loop: dict[str, list[OperatorAtLine]] = defaultdict(list)
    for operator in script.operators:
        for line in set(operator.loops) - script.step_loops:
            by_loop[line].append(operator)
    candidates = [loop for line, operators in by_loop.items() if (loop := _loop(rank, line, operators))]
    kept: list[Loop] = []
    for loop in sorted(candidates, key=lambda one: -one.ms):
        if not any(loop.lines & other.lines for other in kept):
            kept.append(loop)
    return kept


def _loop(rank: Rank, line: str, operators: list[OperatorAtLine]) -> Loop | None:
    repeated = [operator for operator in operators if operator.calls >= MANY and operator.constant < operator.calls]
    independent = [operator for operator in repeated if operator.depth <= operator.calls / 4]
    total = sum(operator.calls for operator in operators)
    if not independent or sum(operator.calls for operator in independent) < total / 2:
        return None
    own = [operator for operator in operators if set(operator.loops) - rank.script.step_loops == {line}]
    dependent = sum(operator.calls for operator in own if operator.depth == operator.calls > 1)
    if 2 * dependent > sum(operator.calls for operator in own):
        return None  # its iterations depend on each other, like layers; those of an inner loop may not
    lines = _with_between(line, {operator.line for operator in operators})
    rounds = max(operator.calls for operator in independent)
    small = sum(kernel.duration for kernel in rank.kernels if kernel.stack in lines and kernel.duration < SMALL)
    gaps = sum(ms for at, ms in rank.lines_of(rank.host_waits["launch"]).items() if at in lines)
    return Loop(line, rounds, frozenset(lines), (rank.per_step(small) + gaps) * (1 - 1 / rounds), gaps)


def _with_between(loop: str, lines: set[str]) -> set[str]:
    """These lines, and those between the first and the last of them in the loop's file."""
    file, _, first = loop.rpartition(":")
    own = [int(number) for name, _, number in (line.rpartition(":") for line in lines) if name == file]
    last = max((number for number in own if number >= int(first)), default=int(first))
    return lines | {f"{file}:{number}" for number in range(int(first), last + 1)}


def chains(rank: Rank) -> list[Chain]:
    """Places where many element-wise operators follow each other, such as a norm or an activation written out."""
    by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
    for operator in rank.script.operators:
        file, _, number = operator.line.rpartition(":")
        if operator.direct and _plain(operator.op) in ELEMENTWISE:
            by_line[file, int(number)].add(_plain(operator.op))
    groups: list[list[tuple[str, int]]] = []
    for line in sorted(by_line):
        if groups and groups[-1][-1] == (line[0], line[1] - 1):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [_chain(rank, lines) for lines in groups if len(set().union(*(by_line[line] for line in lines))) >= LINKS]


def _chain(rank: Rank, group: list[tuple[str, int]]) -> Chain:
    lines = {f"{file}:{number}" for file, number in group}
    work = rank.of(Work.compute)
    parts = [kernel for kernel in work if kernel.stack in lines and _plain(kernel.op) in ELEMENTWISE]
    by_line: dict[str, int] = dict.fromkeys(lines, 0)
    for kernel in parts:
        by_line[kernel.stack] += kernel.duration
    return Chain(max(by_line, key=lambda line: by_line[line]), len(parts) / rank.steps, rank.time_of(parts))


def _plain(op: str) -> str:
    """The name of an operator without its namespace, and without the mark of one that writes in place."""
    return op.rpartition("::")[2].rstrip("_")


def time_by_line(
    rank: Rank, selects: Callable[[OperatorAtLine], bool], is_it: Callable[[Kernel | HostCall, set[str]], bool]
) -> dict[str, float]:
    """Milliseconds per step by line for the wanted operators, the largest first."""
    operators: dict[str, set[str]] = defaultdict(set)
    for operator in rank.script.operators:
        if selects(operator):
            operators[operator.line].add(operator.op)
    work: Sequence[Kernel | HostCall] = [
        item for item in rank.work if item.stack in operators and is_it(item, operators[item.stack])
    ]
    if rank.trace.device == "cpu":
        work = outermost([item for item in work if isinstance(item, HostCall)])
    total: dict[str, int] = defaultdict(int)
    for item in work:
        total[item.stack] += item.duration
    return {line: rank.per_step(total[line]) for line in sorted(total, key=lambda line: -total[line])}


def operator_of(work: Kernel | HostCall) -> str:
    """The framework's operator that launched a kernel."""
    return work.op if isinstance(work, Kernel) else work.name


def shown(lines: dict[str, float], rank: Rank, most: int = 3) -> str:
    """The first lines with their milliseconds and text.

    >>> shown({"train.py:7": 12.5}, rank)
    'train.py:7 12.5 ms `loss.backward()`'
    """
    parts = []
    for line, ms in list(lines.items())[:most]:
        text = rank.script.text_of(line)
        parts.append(f"{line} {ms:.1f} ms" + (f" `{text[:60]}`" if text else ""))
    return "; ".join(parts)
