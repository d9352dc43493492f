"""Explains a hang: every rank writes the Python stacks of all its threads."""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from npukit.report.language import translated
from npukit.report.writing import write_text
from npukit.train.options import TrainOptions

_WAIT_FOR_OTHERS = 5.0
_ENGINE = Path(__file__).parents[1]
_WAITING = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/")


class HangWatch:
    """After options.hang_limit seconds without `beat`, write output/hang-rankN.txt; the main rank names who lags
    behind.

    The run is not ended, since it may only be slow. Without a limit this does nothing.

    >>> with HangWatch(options, rank=0, world_size=8) as hang:
    ...     for step, batch in enumerate(batches, start=1):
    ...         train(batch)
    ...         hang.beat(step)
    """

    def __init__(
        self,
        options: TrainOptions,
        rank: int = 0,
        world_size: int = 1,
        log: Callable[[str], None] = lambda text: print(translated(text), file=sys.stderr, flush=True),
    ) -> None:
        self._limit = options.hang_limit
        self._folder = options.output
        self._rank, self._world_size, self._log = rank, world_size, log
        self._step = 0
        self._last = time.monotonic()
        self._told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="npukit-hang-watch", daemon=True)

    def __enter__(self) -> HangWatch:
        if self._limit is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for old in (hang_file(self._folder, self._rank), self._fallback()):
                old.unlink(missing_ok=True)
            self._main = threading.current_thread().ident
            self._last = time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._limit is not None:
            self._stop.set()
            self._thread.join()

    def beat(self, step: int) -> None:
        """Call after every step and between the batches of an evaluation."""
        self._step, self._last, self._told = step, time.monotonic(), False

    def _run(self) -> None:
        assert self._limit is not None
        tick = min(1.0, self._limit / 4)
        # If the main thread never releases the GIL, this thread hangs too; then faulthandler writes the stacks.
        with self._fallback().open("w") as file:
            while not self._stop.wait(tick):
                faulthandler.dump_traceback_later(self._limit + tick, file=file)
                if not self._told and time.monotonic() - self._last > self._limit:
                    self._told = True
                    self._write()
                    if self._rank == 0:
                        self._tell_all()
            faulthandler.cancel_dump_traceback_later()
        if not self._fallback().stat().st_size:
            self._fallback().unlink()

    def _fallback(self) -> Path:
        return self._folder / f"hang-rank{self._rank}-locked.txt"

    def _write(self) -> None:
        frames = sys._current_frames()
        main = frames.get(self._main or 0)
        head = {
            "rank": self._rank,
            "last_step": self._step,
            "seconds": round(time.monotonic() - self._last, 1),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "at": _place(main),
            "waits": _waits(main),
        }
        text = json.dumps(head) + "\n" + "".join(_stacks(frames))
        write_text(hang_file(self._folder, self._rank), text)

    def _tell_all(self) -> None:
        until = time.monotonic() + _WAIT_FOR_OTHERS
        paths = {rank: hang_file(self._folder, rank) for rank in range(self._world_size)}
        while not all(path.exists() for path in paths.values()) and time.monotonic() < until:
            time.sleep(0.1)
        heads = {
            rank: json.loads(path.read_text(encoding="utf-8").split("\n", 1)[0])
            for rank, path in paths.items()
            if path.exists()
        }
        self._log(describe(heads, self._world_size, self._folder))


def hang_file(folder: Path, rank: int) -> Path:
    return folder / f"hang-rank{rank}.txt"


def describe(heads: Mapping[int, Mapping[str, object]], world_size: int, folder: Path) -> str:
    """Where every rank is, and which one the others are probably waiting for."""
    seconds = max((float(str(head["seconds"])) for head in heads.values()), default=0.0)
    lines = [f"npukit: no step for {seconds:.0f} s. Stacks of all threads are in {folder}/hang-rank*.txt"]
    for rank in range(world_size):
        head = heads.get(rank)
        lines.append(
            f"  rank {rank}: after step {head['last_step']}, at {head['at']}"
            if head
            else f"  rank {rank}: wrote nothing: it exited, still makes progress, or has another output folder"
        )
    lines += [f"  {verdict}" for verdict in _lagging(heads, world_size)]
    return "\n".join(lines)


def _lagging(heads: Mapping[int, Mapping[str, object]], world_size: int) -> list[str]:
    if world_size == 1:
        return []
    missing = sorted(set(range(world_size)) - set(heads))
    if missing:
        return [f"Look at rank {', '.join(map(str, missing))} first."]
    steps = {rank: int(str(head["last_step"])) for rank, head in heads.items()}
    behind = [rank for rank, step in steps.items() if step < max(steps.values())]
    busy = [rank for rank, head in heads.items() if not head["waits"]]
    lagging = behind or (busy if len(busy) < world_size else [])
    return [f"The others probably wait for rank {', '.join(map(str, lagging))}."] if lagging else []


def _waits(frame: FrameType | None) -> bool:
    """Whether a stack is waiting for other ranks: in a collective, a backward pass, or a synchronisation."""
    innermost = Path(frame.f_code.co_filename) if frame else Path()
    if _ENGINE in innermost.parents and innermost.name != "data.py":
        return True
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _WAITING):
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _stacks(frames: Mapping[int, FrameType]) -> list[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    parts = []
    for ident, frame in frames.items():
        if ident != own:
            parts.append(f"\nThread {names.get(ident, ident)}, newest call last:\n")
            parts += traceback.format_stack(frame)
    return parts
