"""A profiler trace of a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from npukit.launch.abilities import abilities
from npukit.launch.devices import is_simulated
from npukit.train.options import TrainOptions


class StepProfiler:
    """Writes a trace of the steps in `options.profile` to output/profile/; does nothing without them.

    >>> with StepProfiler(options, device, rank=0, start_step=0) as profiler:
    ...     for batch in batches:
    ...         train(batch)
    ...         profiler.step()
    """

    def __init__(self, options: TrainOptions, device: torch.device, rank: int = 0, start_step: int = 0) -> None:
        self._first, self._last = options.profile.steps if options.profile else (0, 0)
        self._folder = options.output / "profile"
        self._device, self._rank, self._step = device, rank, start_step
        self._profiler: Any = None
        self.trace: Path | None = None

    def __enter__(self) -> StepProfiler:
        self._start_if_due()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()  # the run may end before the last recorded step

    def step(self) -> None:
        """Call after every optimizer step."""
        self._step += 1
        if self._profiler is None:
            self._start_if_due()
        elif self._step >= self._last:
            self._stop()
        else:
            self._profiler.step()

    def _start_if_due(self) -> None:
        if self._first <= self._step + 1 <= self._last:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._profiler = self._npu_profiler() if self._on_real_npu() else self._torch_profiler()
            self._profiler.start()

    def _stop(self) -> None:
        if self._profiler is None:
            return
        self._synchronize()
        self._profiler.stop()
        if not self._on_real_npu():
            self.trace = self._folder / f"steps-{self._first}-{self._last}-rank{self._rank}.json"
            self._profiler.export_chrome_trace(str(self.trace))
        self._profiler = None

    def _on_real_npu(self) -> bool:
        # A simulated card has no device events, so torch's profiler sees everything.
        return abilities(self._device).torch_npu and not is_simulated()

    def _torch_profiler(self) -> Any:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        return torch.profiler.profile(activities=activities, record_shapes=True)

    def _npu_profiler(self) -> Any:
        import torch_npu

        profiler = torch_npu.profiler
        return profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
            record_shapes=True,
            on_trace_ready=profiler.tensorboard_trace_handler(str(self._folder)),
        )

    def _synchronize(self) -> None:
        if abilities(self._device).own_memory:
            torch.get_device_module(self._device).synchronize()
