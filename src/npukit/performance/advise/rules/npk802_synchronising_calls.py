"""The host waits for the device in the middle of a step, so nothing is queued when the device is done.

`.item()`, `.tolist()`, `.cpu()`, `print(loss)`, `if tensor:`, `nonzero` and `torch.npu.synchronize()` do this.
This counts the time in which the device then had nothing to do, not the time in which the host waited.

example:
    total += loss.detach()                    # not: total += loss.item()
    if step % 50 == 0:
        print(total.item() / 50)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npukit.performance.advise.lines import shown
from npukit.performance.advise.rank import SYNC, Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.performance.read.model import HostCall
from npukit.performance.read.python_stack import Innermost

rule = Rule(
    "NPK802",
    "synchronising-calls",
    needs=("kernels", "launches"),
    devices=("npu", "cuda"),
    why="Each of these calls empties the device's queue, and the device stands still until it is filled again.",
    remedy="Read values every N steps instead of in every one, keep running sums on the device (loss.detach()), and "
    "copy with non_blocking=True.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    calls = rank.calls(SYNC)
    ms = rank.host_causes["sync"]
    if not calls or ms <= 0:
        return
    reads = _reads(rank, calls)
    counts = Counter(call.name for call in reads or calls)
    calling = Counter(call.stack for call in reads if call.stack)
    waiting = rank.lines_of(rank.host_waits["sync"])
    names = ", ".join(f"{name} {count / rank.steps:.0f}x" for name, count in counts.most_common(3))
    what = f"Calls that wait for the device leave it without work for {ms:.1f} ms of each step"
    evidence = f"{len(calls) / rank.steps:.0f} waits per step: {names}"
    evidence += f"; most at {shown(waiting, rank)}" if waiting else ""
    line = next(iter([*waiting, *(name for name, _ in calling.most_common(1))]), "")
    yield rule.advice(rank, what, ms, evidence, line=line)


def _reads(rank: Rank, calls: list[HostCall]) -> list[HostCall]:
    """The framework's operators around the waits."""
    inner = Innermost(rank.trace.ops)
    return [op for call in calls if (op := inner.around(call))]
