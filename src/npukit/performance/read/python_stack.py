"""Find what was running around a call: the user's line around an operator, or the operator around a launch."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from npukit.performance.read.lines import Script
from npukit.performance.read.model import HostCall
from npukit.performance.read.values import users_line


class Frames:
    """The functions of the user's code by thread. Those of libraries are dropped on arrival.

    >>> frames = Frames()
    >>> frames.add("train.py(12): main", 0, 100, "1")
    >>> frames.place([HostCall("aten::add", 5, 6, "1")])
    """

    def __init__(self) -> None:
        self._threads: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._seen = False

    def __bool__(self) -> bool:
        return self._seen

    def add(self, name: str, start: int, end: int, thread: str) -> None:
        self._seen = True
        if line := users_line([name]):
            self._threads[thread].append((start, end, line))

    def place(self, calls: list[HostCall], script: Script | None = None) -> None:
        """Attribute each call to the user's line that was running, if that is known, or to the enclosing function."""
        if script and script.changes:
            for call in calls:
                call.stack = script.at(call.start)
            return
        starts = {}
        for thread, spans in self._threads.items():
            spans.sort(key=lambda span: (span[0], -span[1]))
            starts[thread] = [span[0] for span in spans]
        for call in calls:
            if not call.stack and call.thread in starts:
                call.stack = self._around(call, starts[call.thread])

    def _around(self, call: HostCall, starts: list[int]) -> str:
        spans = self._threads[call.thread]
        index = bisect_right(starts, call.start) - 1
        for start, end, line in reversed(spans[max(0, index - 200) : index + 1]):
            if start <= call.start and end >= call.end:
                return line
        return ""


class Innermost:
    """The innermost operator around a call of the same thread.

    >>> Innermost([HostCall("aten::linear", 0, 9), HostCall("aten::addmm", 1, 8)]).around(HostCall("launch", 2, 3)).name
    'aten::addmm'
    """

    def __init__(self, calls: list[HostCall]) -> None:
        self._threads: dict[str, list[HostCall]] = defaultdict(list)
        for call in sorted(calls, key=lambda item: (item.start, -item.end)):
            self._threads[call.thread].append(call)
        self._starts = {thread: [call.start for call in calls] for thread, calls in self._threads.items()}

    def around(self, call: HostCall) -> HostCall | None:
        starts = self._starts.get(call.thread)
        if not starts:
            return None
        index = bisect_right(starts, call.start)
        near = reversed(self._threads[call.thread][max(0, index - 40) : index])
        return next((frame for frame in near if frame.end >= call.end), None)


def place_backward(calls: list[HostCall], nodes: list[tuple[HostCall, HostCall]]) -> None:
    """Attribute what ran in a node of the backward pass to the line of the forward call that created the node.

    `nodes`: each call that evaluates a node, with that forward call.
    """
    threads: dict[str, list[tuple[HostCall, HostCall]]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node[0].start):
        threads[node[0].thread].append(node)
    starts = {thread: [node[0].start for node in evaluated] for thread, evaluated in threads.items()}
    for call in calls:
        if call.thread in starts:
            index = bisect_right(starts[call.thread], call.start) - 1
            if index >= 0 and threads[call.thread][index][0].end >= call.end:
                call.stack = threads[call.thread][index][1].stack
