"""The process around a run: it outlives the studio and writes how the run ended.

python -m npukit.studio.wrapper FOLDER runs the command in FOLDER/run.json. Only the standard library is imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from npukit.children import die_with

PROCESS, EXIT, RECORD, LOG, RESULT = "process.json", "exit.json", "run.json", "output.log", "result.txt"


def birth(pid: int) -> str | None:
    """The start of a process in ticks since boot, with the boot's id, to recognise a reused process id.

    >>> birth(os.getpid()) is not None
    True
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = text[text.rindex(")") + 2 :].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else f"{rest[18]}@{boot}"


def read(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def write(file: Path, value: object) -> None:
    """Write JSON so that a reader sees all of it or nothing."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(json.dumps(value), encoding="utf-8")
    beside.replace(file)


def main(folder: Path) -> None:
    """Run the command, pass on signals, and write its exit code."""
    write(folder / PROCESS, {"pid": os.getpid(), "birth": birth(os.getpid()), "began": time.time()})
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    with (folder / LOG).open("ab") as log, (folder / RESULT).open("wb") as result:
        me = os.getpid()
        child = subprocess.Popen(
            record["argv"],
            cwd=record["cwd"],
            env={**os.environ, **record["variables"]},
            stdin=subprocess.DEVNULL,
            stdout=result if record["has_result"] else log,
            stderr=log,
            preexec_fn=lambda: die_with(me),
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: child.send_signal(number))
        code = child.wait()
    write(folder / EXIT, {"code": code, "ended": time.time()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
