"""Count the steps of a profiled script and record the requested ones.

Run as `python -m npukit.performance.recording.recorder SCRIPT|-m MODULE [ARGS]` with the settings in NPUKIT_PROFILE.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from npukit.launch.script import run_command
from npukit.performance.profile import SETTINGS, Settings
from npukit.performance.read.lines import LINES
from npukit.performance.recording.insight import Insight
from npukit.quiet import verbosity
from npukit.report.report import counted
from npukit.report.terminal import say

PATIENCE = 64  # this many backward passes without a step are not gradient accumulation
STACKS = 2  # the lowest level that records call stacks


class ProfileRecorder:
    """Starts and stops the profiler around the steps of the first optimizer that is used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.done = 0  # finished steps
        self._optimizer: int | None = None
        self._backwards = 0
        self._profiler: Any = None
        self._stepping = False  # inside an optimizer's step
        self._finished = False
        self._insight: Insight | None = None

    def install(self) -> None:
        import torch

        optimizers: Any = torch.optim.Optimizer
        # Not with torch's hooks, which run inside the mark `Optimizer.step`. The mark would extend into the next step,
        # and torch_npu does not attribute the kernels of a step that begins within a mark to its operator.
        marked = optimizers.profile_hook_step
        optimizers.profile_hook_step = staticmethod(lambda step: self._counted(marked(step)))
        for kind in _subclasses(optimizers):
            if getattr(kind.__dict__.get("step"), "hooked", False):
                kind.step = self._counted(kind.step)
        self._count_backwards()
        atexit.register(self.close)
        if self.settings.first <= 1:
            self._start()
            if self.settings.first == 0:
                self._profiler.step()  # the warm-up ends immediately

    def _counted(self, step: Any) -> Any:
        """Wrap an optimizer's `step`, which ends a training step."""

        @functools.wraps(step)
        def counted(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._stepping or self._finished:  # a subclass may call its parent's step
                return step(optimizer, *arguments, **keywords)
            self._stepping = True
            try:
                result = step(optimizer, *arguments, **keywords)
            finally:
                self._stepping = False
            self._after_step(optimizer)
            return result

        return counted

    def _count_backwards(self) -> None:
        """Count backward passes as steps if no torch optimizer makes one for a while."""
        import torch

        backward = torch.autograd.backward

        def counted(*arguments: Any, **keywords: Any) -> None:
            backward(*arguments, **keywords)
            self._backwards += 1
            if self._backwards > PATIENCE and self._optimizer in (None, id(None)):
                self._after_step(None)

        torch.autograd.backward = counted

    def _after_step(self, optimizer: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)  # a GAN has two optimizers: count one of them
        if id(optimizer) != self._optimizer or self._finished:
            return
        self.done += 1
        if self.done > self.settings.last + 1:
            self.close()
        elif self._profiler is not None:
            self._profiler.step()
            if self._insight:
                self._insight.next_step(recorded=self.done <= self.settings.last)
            if self.done > self.settings.last:
                self._stop_profiler()
                if self._insight is None:
                    self.close()
        elif self.done == self.settings.first - 1:
            self._start()

    def _start(self) -> None:
        self._profiler = make_profiler(self.settings, lambda: self.done > self.settings.first)
        if self.settings.level > 0:
            self._insight = Insight()
        self._profiler.start()
        gc.callbacks.append(_mark_collection)

    def _stop_profiler(self) -> None:
        if _mark_collection in gc.callbacks:
            gc.callbacks.remove(_mark_collection)
            self._profiler.stop()

    def close(self) -> None:
        """Stop and write the results, even if the script ends early."""
        if self._finished:
            return
        self._finished = True
        first, last = self.settings.first, min(self.done - 1, self.settings.last)
        if self._insight:
            self._insight.stop()
        if self._profiler is not None:
            self._stop_profiler()
        if self._profiler is None or last < first:
            self._say(
                f"nothing was recorded: the script made {counted(self.done, 'step')}. Record earlier ones: --steps."
                if self.done
                else "nothing was recorded: the script ended before its first step."
            )
            return
        if self._insight:
            self._insight.write(Path(self.settings.folder) / f"{LINES}.rank{os.environ.get('RANK', '0')}.json.gz")
        self._say(f"steps {first} to {last} are recorded: npukit advise {os.path.relpath(self.settings.folder)}")
        if self.settings.stop and self.done > self.settings.last:
            sys.exit(0)

    def _say(self, message: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            say(message)


def _subclasses(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def make_profiler(settings: Settings, has_steps: Callable[[], bool]) -> Any:
    """torch_npu's profiler on an NPU, torch's own elsewhere. It warms up for one step and writes the folder at the end.

    It writes nothing if no steps have been recorded by then. Both print a warning if the warm-up is skipped.
    """
    import torch

    from npukit.launch.devices import torch_device

    kind, active = torch_device().type, settings.last - settings.first + 1
    options: dict[str, Any] = {"record_shapes": settings.level >= 1, "with_stack": settings.level >= STACKS}
    options["profile_memory"] = settings.level >= 1 and kind != "cpu"
    if kind == "npu":
        return _npu_profiler(settings, active, options, has_steps)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if kind == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    trace = Path(settings.folder) / f"rank{os.environ.get('RANK', '0')}.pt.trace.json.gz"
    profiler = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=active, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(trace)) if has_steps() else None,
        **options,
    )
    profiler.preset_metadata_json("npukit_gc", "1")
    return profiler


def _npu_profiler(settings: Settings, active: int, options: dict[str, Any], has_steps: Callable[[], bool]) -> Any:
    import torch_npu

    npu = torch_npu.profiler
    write = _without_chatter(npu.tensorboard_trace_handler(settings.folder))
    level = (npu.ProfilerLevel.Level0, npu.ProfilerLevel.Level1, npu.ProfilerLevel.Level1)[settings.level]
    return npu.profile(
        activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
        schedule=npu.schedule(wait=0, warmup=1, active=active, repeat=1),
        on_trace_ready=lambda made: write(made) if has_steps() else None,
        experimental_config=npu._ExperimentalConfig(profiler_level=level, gc_detect_threshold=1.0),
        **options,
    )


def _without_chatter(write: Callable[[Any], None]) -> Callable[[Any], None]:
    """The profiler with only its errors shown: torch_npu prints each stage of its work, and a spinner."""

    def write_quietly(profiler: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as heard:
            write(profiler)
        for line in heard.getvalue().splitlines():
            if "[ERROR]" in line:
                print(line, file=sys.stderr)

    return write if verbosity() == "verbose" else write_quietly


_open: list[Any] = []


def _mark_collection(phase: str, info: dict[str, int]) -> None:
    """Show garbage collections in the trace, except those of the youngest objects."""
    import torch

    if info["generation"] == 0:
        return
    if phase == "start":
        mark: Any = torch.profiler.record_function("npukit::gc")
        mark.__enter__()
        _open.append(mark)
    elif _open:
        _open.pop().__exit__(None, None, None)


def main() -> None:
    settings = Settings(**json.loads(os.environ.pop(SETTINGS)))
    arguments = sys.argv[1:]
    if arguments[0] != "-m":
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
    ProfileRecorder(settings).install()
    run_command(arguments)


if __name__ == "__main__":
    main()
