"""A rank's failure: passed from the rank to its launcher and between nodes, and reported with its explanation."""

from __future__ import annotations

import dataclasses
import json
import signal
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from npukit.report.language import translated
from npukit.report.terminal import printable

SIGNALS = {
    "SIGKILL": "Something outside the job killed it: most often the kernel because the machine ran out of memory "
    "(see `dmesg | tail`), otherwise a person or the scheduler.",
    "SIGSEGV": "It crashed in native code: run it with PYTHONFAULTHANDLER=1 to see where.",
    "SIGABRT": "Native code aborted: the last lines of its log say why.",
    "SIGBUS": "Shared memory ran out: give the container more (docker --shm-size), or use fewer data loader workers.",
    "SIGTERM": "Something outside the job terminated it: a person or the scheduler.",
}


STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # as shells count

# The kinds of a failure's text: a message about a mistake of the user, a traceback, or the end of a log.
Kind = Literal["sentence", "traceback", "log"]


@dataclass(frozen=True)
class Failure:
    """Why one rank ended."""

    rank: int
    node: int
    time: float
    exit_code: int
    text: str
    log: str = ""
    kind: Kind = "log"

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that another rank has failed, or that this rank was stopped."""
        return self.may_be_consequence and "cause" not in self._kinds

    @property
    def may_be_consequence(self) -> bool:
        """Whether it may be a consequence or a cause, such as a closed connection."""
        return self.was_stopped or "consequence" in self._kinds

    @property
    def _kinds(self) -> set[str]:
        from npukit.explain import explain

        return set() if self.was_stopped else {error.kind for error in explain(self.text)}

    @property
    def was_stopped(self) -> bool:
        """Whether it ended because it was stopped. A rank with its own error may be stopped while it ends."""
        return self.kind == "log" and (self.ended_by_signal or self.exit_code == -signal.SIGTERM)

    @property
    def left(self) -> bool:
        """Whether it ended without an error: others that waited for it may have failed because of that."""
        return self.exit_code == 0

    @property
    def ended_by_signal(self) -> bool:
        """Whether it ended after a signal, in an orderly way."""
        return self.kind == "log" and self.exit_code in STOPPED

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Failure:
        return cls(**json.loads(text))


def first(failures: list[Failure]) -> Failure:
    """The failure that caused the others."""
    failed = [failure for failure in failures if not failure.left]
    if len(failed) < len(failures) and all(failure.may_be_consequence for failure in failed):
        return min((failure for failure in failures if failure.left), key=lambda failure: failure.time)
    return min(failed, key=lambda failure: (failure.is_consequence, failure.may_be_consequence, failure.time))


def write_error_file(file: str, message: str, text: str, kind: Kind, exit_code: int = 1) -> None:
    """Write a rank's error in torchrun's form, to the file where torchrun expects it."""
    now = time.time()
    extra = {"py_callstack": text, "timestamp": str(int(now)), "exact_time": now, "kind": kind, "code": exit_code}
    Path(file).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


def read_failure(rank: int, node: int, exit_code: int, error_file: str, log: str) -> Failure:
    """The failure of a rank that ended with `exit_code`: its error, otherwise the end of its log."""
    try:
        extra = json.loads(Path(error_file).read_text())["message"]["extraInfo"]
        when = float(extra.get("exact_time", extra["timestamp"]))
        code = extra.get("code", exit_code)  # the launcher may have stopped the rank while it ended
        return Failure(rank, node, when, code, extra["py_callstack"], log, extra.get("kind", "traceback"))
    except (OSError, ValueError, KeyError, TypeError):
        text = Path(log).read_text(errors="replace")[-20_000:] if log else ""
        return Failure(rank, node, time.time(), exit_code, text, log)


def report(failure: Failure, nodes: int) -> str:
    """The report that replaces the tracebacks of all ranks."""
    who = f"rank {failure.rank}" if failure.rank >= 0 else "the launcher"
    where = who + (f" on node {failure.node}" if nodes > 1 else "")
    what = "exited with code 0 while others still needed it" if failure.left else f"failed first, {_how(failure)}"
    parts = [f"npukit: {translated(f'{where} {what}; the other ranks were stopped.')}"]
    if failure.left:
        advice = "Every rank must reach every collective: give all of them the same number of batches and steps."
        parts.append(translated(advice))
    if failure.exit_code < 0 and failure.kind == "log":
        parts[0] += "\n" + translated(SIGNALS.get(signal.Signals(-failure.exit_code).name, ""))
    parts.append(textwrap.indent(printable(_shown(failure.text)), "    "))
    parts.append(explained(failure.text).strip())
    if failure.log:
        parts.append(translated(f"Its full log: {failure.log}"))
    return "\n" + "\n\n".join(part for part in parts if part.strip()) + "\n"


def _how(failure: Failure) -> str:
    if failure.exit_code >= 0:
        return f"with exit code {failure.exit_code}"
    return f"killed by {signal.Signals(-failure.exit_code).name}" if failure.kind == "log" else "with an exception"


def _shown(text: str) -> str:
    """The traceback, or the last lines of a log."""
    start = text.find("Traceback (most recent call last)")
    return text[start:].rstrip() if start >= 0 else "\n".join(text.splitlines()[-10:])


def explained(text: str) -> str:
    """The explanation of an error in `text`, if it is known."""
    from npukit.explain import explain
    from npukit.explain.text import as_text

    known = [explanation for explanation in explain(text) if explanation.is_known]
    return f"\n{as_text(known)}\n" if known else ""
