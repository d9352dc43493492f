"""Record which line of the user's code is running while steps are recorded.

Profilers record the functions around an operator. For a function that keeps running, such as the training loop, they
only know the line at which recording began. Here every change of line is recorded with its time through `sys.settrace`,
in the user's own files only.
"""

from __future__ import annotations

import sys
import time
from types import CodeType, FrameType
from typing import Any

from npukit.performance.recording.users_code import (
    COMPILING,
    LOADING,
    is_users,
    library_call,
    line_name,
    source_of,
    users_frames,
)

ENOUGH = 5000  # changes of line per code object and step; beyond this, tracing itself would be measured
LibraryCall = tuple[int, int, str]  # start and end


class LineTracer:
    """Records the times at which lines of the user's code began to run, in the thread that starts it.

    >>> tracer = LineTracer()
    >>> tracer.start()
    >>> tracer.stop()
    >>> tracer.as_data()["lines"]
    """

    def __init__(self) -> None:
        self._changes: list[tuple[int, CodeType, int]] = []
        self._library: list[LibraryCall] = []
        self._kinds: dict[CodeType, str | None] = {}  # "" for the user's code, None: irrelevant, or a library
        self._counts: dict[CodeType, int] = {}
        self._last: tuple[CodeType, int] | None = None
        self._running = False

    def start(self) -> None:
        """Start, unless a debugger or a coverage tool is already tracing."""
        if sys.gettrace() is None:
            self._running = True
            self.next_step()
            sys.settrace(self._enter)

    def next_step(self) -> None:
        """Resume tracing code that was skipped because its lines changed too often."""
        if self._running:
            self._counts.clear()
            for frame in users_frames(sys._getframe(1)):
                frame.f_trace, frame.f_trace_lines = self._within, True

    def stop(self) -> None:
        if self._running:
            self._running = False
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        try:
            kind = self._kinds[code]
        except KeyError:
            kind = self._kinds[code] = "" if is_users(code.co_filename) else library_call(code) or None
        if kind is None:
            return None
        if kind:
            return self._until_return(frame, kind)
        if self._counts.get(code, 0) > ENOUGH:
            return None
        self._note(code, frame.f_lineno)
        return self._within

    def _within(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            code = frame.f_code
            count = self._counts[code] = self._counts.get(code, 0) + 1
            self._note(code, frame.f_lineno)
            frame.f_trace_lines = count <= ENOUGH
        elif event == "return":
            caller = next(users_frames(frame.f_back), None)
            if caller is not None:
                self._note(caller.f_code, caller.f_lineno)
        return self._within

    def _note(self, code: CodeType, line: int) -> None:
        if self._last != (code, line):
            self._last = (code, line)
            self._changes.append((time.time_ns(), code, line))

    def _until_return(self, frame: FrameType, name: str) -> Any:
        start = time.time_ns()
        frame.f_trace_lines = False

        def leave(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "return":
                self._library.append((start, time.time_ns(), name))
            return leave

        return leave

    def as_data(self) -> dict[str, Any]:
        """The lines, their text, when each began to run, and what libraries did: write, compile, start workers."""
        numbers: dict[tuple[str, int], int] = {}
        changes = [(at, numbers.setdefault((code.co_filename, line), len(numbers))) for at, code, line in self._changes]
        return {
            "lines": [line_name(*line) for line in numbers],
            "text": [source_of(file).text(line) for file, line in numbers],
            "writing": [number for (file, line), number in numbers.items() if source_of(file).writes(line)],
            "changes": changes,
            "written": [call for call in self._library if call[2] not in {COMPILING, *LOADING}],
            "loading": [call[:2] for call in self._library if call[2] in LOADING],
            "compiled": [call[:2] for call in self._library if call[2] == COMPILING],
        }
