"""Collects the figures of a run on the device and logs them every few steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npukit.report.language import translated
from npukit.train.options import TrainOptions
from npukit.train.watch.device import device_name, known_peak, peak_memory_gib
from npukit.train.watch.files import Log
from npukit.train.watch.loggers import Logger, open_loggers
from npukit.train.watch.plot import plot_loss
from npukit.train.watch.progress import open_progress
from npukit.train.watch.summary import Summary

CPU = torch.device("cpu")
ALWAYS_LOGGED = 2  # first steps: the user waits for them
ROSE = 1.5  # a loss that ends this much above its start gets a note


class Watch:
    """Writes the figures of a run to the terminal, log.jsonl and options.loggers, on the main rank.

    `flops_per_item` is the cost of one item forward and backward. It gives the model FLOPs utilisation of a device
    whose peak is known.
    """

    def __init__(
        self,
        options: TrainOptions,
        is_main: bool,
        world_size: int,
        total_steps: int,
        flops_per_item: float | None = None,
        item: str = "tokens",
        device: torch.device = CPU,
    ) -> None:
        self._options = options
        self._is_main = is_main
        self._world_size = world_size
        self._total_steps = total_steps
        self._flops_per_item = flops_per_item
        self._item = item
        self._progress = open_progress(is_main, total_steps, item)
        self._log: Log | None = None
        self._loggers: list[Logger] = []
        self._device = device
        self._peak = known_peak(device)
        self._history: list[dict[str, Any]] = []
        self._step = 0
        self._epoch = 0.0
        # Seconds of steps, of waiting for data in them, and of everything else; with earlier parts of a resumed run.
        self._seconds = self._data_wait = self._pauses = 0.0
        self._items = 0
        self._loss: Tensor | float = 0.0  # sum since the last log line
        self._figures: dict[str, Tensor | float] = {}  # sums of the other figures
        self._since = {"steps": 0, "items": 0, "seconds": 0.0, "data_wait": 0.0}
        self._mark = 0.0
        self._stands_still = False
        self._start_step = 0

    def began(
        self, start_step: int, checkpoint: Path | None = None, precision: str = "", changes: Sequence[str] = ()
    ) -> None:
        """Call when the run starts, or resumes after `start_step` (then load_state_dict first)."""
        self._step = self._start_step = start_step
        if checkpoint:
            self._history.append({"step": start_step, "checkpoint": str(checkpoint)})  # its log ends before
        if self._is_main:
            self._log = Log(self._options.output, self._history)
            self._loggers = open_loggers(self._options, start_step)
        self._progress.begin(start_step)
        if changes and start_step < self._total_steps:
            self._progress.say(f"changed since the checkpoint: {', '.join(changes)}")
        if precision and start_step < self._total_steps:
            self._progress.say(f"computing in {precision}")
        self._mark = time.perf_counter()

    def step(
        self,
        step: int,
        epoch: float,
        loss: Tensor,
        grad_norm: Tensor | float,
        learning_rate: float,
        items: int,
        data_wait: float,
        figures: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Any] | None:
        """Call after every optimizer step, with its `items` on all ranks and the seconds of waiting for its batches.

        `figures` are means that are logged beside the loss.

        The tensors are read every log_every steps and after the last one; then what was logged is returned.
        """
        self._step, self._epoch = step, epoch
        self._loss = self._loss + loss.detach().float()
        for name, value in (figures or {}).items():
            self._figures[name] = self._figures.get(name, 0.0) + value.float()
        self._since["steps"] += 1
        self._since["items"] += items
        self._since["data_wait"] += data_wait
        self._progress.step(step)
        if step > ALWAYS_LOGGED and step % self._options.log_every and step != self._total_steps:
            self._since["seconds"] += self._lap()
            return None
        mean_loss = float(self._loss) / self._since["steps"]  # waits for the device
        self._since["seconds"] += self._lap()
        means = {name: float(value) / self._since["steps"] for name, value in self._figures.items()}
        record = self._record(mean_loss, float(grad_norm), learning_rate) | means
        self._figures = {}
        self._write(record)
        self._progress.figures(record, means)
        self._look_for_standstill()
        return record

    def _look_for_standstill(self) -> None:
        """Warn of a gradient that stays zero: nothing fails, but nothing is learned."""
        recent = [row["grad_norm"] for row in self._history if "grad_norm" in row][-2:]
        if recent == [0.0, 0.0] and not self._stands_still:
            self.note(
                self._step,
                "the gradient is zero, so nothing is learned: lower learning_rate, or check the labels or rewards",
            )
        self._stands_still = recent == [0.0, 0.0]

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        """Call after an evaluation; the time since the last step was spent on it."""
        self._pauses += self._lap()
        self._write({"step": step, **metrics})
        self._progress.say(f"step {step}  " + "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))

    def saved(self, step: int, folder: Path) -> None:
        """Call after writing a checkpoint; the time since the last step or evaluation was spent on it."""
        self._pauses += self._lap()
        self._write({"step": step, "checkpoint": str(folder)})
        self._progress.say(f"step {step}  saved {folder}")

    def note(self, step: int, sentence: str) -> None:
        """Show a message to the user, on every rank that has it; it is logged and shown again at the end."""
        self._write({"step": step, "note": sentence})
        if self._is_main:
            self._progress.say(f"step {step}  {sentence}")
        else:
            print(translated(f"step {step}  {sentence}"), file=sys.stderr, flush=True)

    def finish(
        self,
        reason: str,
        exit_code: int = 0,
        best: str | None = None,
        best_checkpoint: str | None = None,
        model_step: int | None = None,
    ) -> Summary:
        """Call when the run has ended, with its best evaluation; writes the summary and the loss curve."""
        summary = self._summary(reason, exit_code, best, best_checkpoint, model_step)
        if self._step == self._start_step and not exit_code:
            self._progress.leave()  # nothing was trained, so there is nothing new to show
        elif self._is_main:
            summary.write(self._options.output)
            if self._options.plot and not plot_loss(self._history, self._options.output / "loss.png"):
                self._progress.say("No loss curve: matplotlib is not installed (`pip install matplotlib`).")
            self._progress.end(summary)
        for logger in self._loggers:
            logger.close()
        if self._log:
            self._log.close()
        return summary

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue the log: plain numbers, text and lists."""
        return {
            "history": list(self._history),
            "step": self._step,
            "epoch": self._epoch,
            "seconds": self._seconds,
            "data_wait": self._data_wait,
            "pauses": self._pauses,
            "items": self._items,
            "loss": float(self._loss),
            "figures": {name: float(value) for name, value in self._figures.items()},
            "since": dict(self._since),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._history = list(state["history"])
        self._step, self._epoch = state["step"], state["epoch"]
        self._seconds, self._data_wait, self._pauses = state["seconds"], state["data_wait"], state["pauses"]
        self._items, self._loss, self._since = state["items"], state["loss"], dict(state["since"])
        self._figures = dict(state.get("figures", {}))

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        return seconds

    def _record(self, loss: float, grad_norm: float, learning_rate: float) -> dict[str, Any]:
        since = self._since
        seconds = max(since["seconds"], 1e-9)
        self._seconds += since["seconds"]
        self._data_wait += since["data_wait"]
        self._items += int(since["items"])
        self._loss, self._since = 0.0, dict.fromkeys(since, 0)
        return {
            "step": self._step,
            "epoch": round(self._epoch, 4),
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "items_per_second": since["items"] / seconds,
            "utilisation": self._utilisation(since["items"] / seconds),
            "memory_gib": peak_memory_gib(self._device),
            "data_wait": since["data_wait"] / seconds,
            "seconds": self._seconds,
            "seconds_left": (self._total_steps - self._step) * seconds / since["steps"],
        }

    def _utilisation(self, items_per_second: float) -> float | None:
        if self._flops_per_item is None or self._peak is None:
            return None
        return self._flops_per_item * items_per_second / (self._peak * self._world_size)

    def _write(self, record: dict[str, Any]) -> None:
        self._history.append(record)
        if self._log:
            self._log.add(record)
        figures = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}
        for logger in self._loggers:
            if figures:
                logger.log(record["step"], figures)

    def _summary(
        self, reason: str, exit_code: int, best: str | None, best_checkpoint: str | None, model_step: int | None
    ) -> Summary:
        losses = [row["loss"] for row in self._history if "loss" in row]
        evaluations = [row for row in self._history if any(name.startswith("eval") for name in row)]
        seconds, items = self._seconds + self._since["seconds"], self._items + int(self._since["items"])
        speed = items / seconds if seconds else 0.0
        return Summary(
            reason=reason,
            exit_code=exit_code,
            steps=self._step,
            total_steps=self._total_steps,
            epochs=self._epoch,
            seconds=seconds + self._pauses,
            pauses=self._pauses,
            item=self._item,
            items=items,
            items_per_second=speed,
            utilisation=self._utilisation(speed),
            data_wait=(self._data_wait + self._since["data_wait"]) / seconds if seconds else 0.0,
            device=device_name(self._device),
            world_size=self._world_size,
            memory_gib=peak_memory_gib(self._device),
            first_loss=losses[0] if losses else None,
            last_loss=losses[-1] if losses else None,
            evaluation={n: v for n, v in evaluations[-1].items() if n != "step"} if evaluations else {},
            best=best,
            best_checkpoint=best_checkpoint,
            model_step=model_step,
            checkpoint=next((row["checkpoint"] for row in reversed(self._history) if "checkpoint" in row), None),
            output=str(self._options.output),
            notes=tuple(self._notes(losses)),
        )

    def _notes(self, losses: list[float]) -> Iterator[str]:
        yield from (f"step {row['step']}: {row['note']}" for row in self._history if "note" in row)
        if losses and losses[-1] > losses[0] * ROSE > 0:
            yield f"the loss rose from {losses[0]:.4f} to {losses[-1]:.4f}: lower learning_rate, or add warmup."
