"""What is learned about a script besides its profile: its lines over time, one step in detail, and kept graphs."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from npukit.performance.recording.lines import LineTracer
from npukit.performance.recording.threads import ThreadWatcher


class Insight:
    """Starts with the first recorded step. The step after the last one is examined.

    >>> insight = Insight()
    >>> insight.next_step(recorded=False)
    >>> insight.write(Path("profile/lines.rank0.json.gz"))
    """

    def __init__(self) -> None:
        from npukit.performance.recording.graph import live_nodes, memory_in_use

        self._tracer, self._threads = LineTracer(), ThreadWatcher()
        self._examiner: Any = None
        self._steps = 0
        self._began = (live_nodes(), memory_in_use())
        self._kept: dict[str, Any] = {}
        self._step_loops: list[str] = []
        self._tracer.start()
        self._threads.start()

    def next_step(self, recorded: bool) -> None:
        """Called after each step; `recorded` says whether the next one is recorded."""
        self._steps += 1
        if recorded:
            self._tracer.next_step()
            return
        from npukit.performance.recording.examine import StepExaminer, step_loops

        self.stop()
        self._step_loops = step_loops(sys._getframe(1))
        self._count_graphs()
        if not _is_compiled():
            self._examiner = StepExaminer()
            self._examiner.__enter__()

    def _count_graphs(self) -> None:
        from npukit.performance.recording.graph import holder, live_nodes, memory_in_use

        nodes, memory = live_nodes(), memory_in_use()
        name, line = holder()
        self._kept = {
            "nodes": (nodes - self._began[0]) / self._steps,
            "bytes": (memory - self._began[1]) / self._steps,
            "name": name,
            "line": line,
        }

    def stop(self) -> None:
        """Stop recording lines."""
        self._tracer.stop()
        self._threads.stop()

    def write(self, path: Path) -> None:
        """Stop, and write the results."""
        self.stop()
        data = self._tracer.as_data() | self._threads.as_data() | {"kept": self._kept, "step_loops": self._step_loops}
        if self._examiner is not None:
            self._examiner.leave()
            data |= self._examiner.as_data()
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump(data, file)


def _is_compiled() -> bool:
    """Whether torch.compile is in use, which would recompile everything in order to be examined."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo and dynamo.counters["stats"])
