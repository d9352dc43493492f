"""Record a run with module hooks and, at level ops, a dispatch mode. Steps end with the optimizer's step."""

from __future__ import annotations

import contextlib
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from npukit.precision.recording.environment import write_environment
from npukit.precision.recording.module_rows import ModuleRows
from npukit.precision.recording.operator_rows import OperatorRows
from npukit.precision.recording.optimizer_rows import OptimizerRows
from npukit.precision.recording.options import RecordOptions
from npukit.precision.recording.rows import StepRows


class Recorder:
    """Records what runs between `start` and `stop`, or in a `with` block."""

    def __init__(self, options: RecordOptions) -> None:
        by_operator = options.level == "ops"
        self._rows = StepRows(options)
        self._modules = ModuleRows(self._rows, names_makers=not by_operator)
        self._optimizers = OptimizerRows(self._rows, self._modules.tracker)
        self._operators = OperatorRows(self._rows, self._modules.tracker) if by_operator else None
        self._optimizer: int | None = None  # the optimizer whose steps are counted
        self._around = contextlib.ExitStack()

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start recording."""
        self._rows.running = True
        write_environment(self._rows.options.output)
        self._modules.tracker.start()
        self._around.callback(self._modules.tracker.stop)
        for handle in (
            register_optimizer_step_pre_hook(self._optimizer_began),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ):
            self._around.callback(handle.remove)
        if self._operators:
            self._around.enter_context(self._operators.mode)
        self._begin_step(0)

    def stop(self) -> None:
        """Write what is left and stop recording."""
        was_running, self._rows.running = self._rows.running, False
        self._around.close()  # also after the last requested step, when nothing observes the program any more
        self._rows.finish()
        if was_running:
            self._end_step()

    def step(self) -> None:
        """End a step. Training loops need not call this, because `optimizer.step()` does."""
        self._end_step()
        rows = self._rows
        self._begin_step(rows.step + 1)
        if rows.options.steps is not None and rows.step > max(rows.options.steps, default=-1):
            rows.running = False
            rows.finish()
            if self._operators is None:
                self._around.close()  # back to full speed; a dispatch mode can only be left in order

    def _begin_step(self, number: int) -> None:
        self._rows.begin_step(number)
        self._modules.tracker.begin_step()
        if self._operators:
            self._operators.begin_step()

    def _end_step(self) -> None:
        self._modules.end_backwards()
        if self._operators:
            self._operators.end_step()
        self._rows.end_step()

    def _optimizer_began(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._operators:
            self._operators.optimizing = True
        if self._rows.recording:
            self._modules.end_backwards()
            self._optimizers.began()

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._operators:
            self._operators.optimizing = False
        if self._rows.recording:
            self._optimizers.ended(optimizer)
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer == id(optimizer) and self._rows.running:
            self.step()
