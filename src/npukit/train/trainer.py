"""The training loop. `Trainer._train_step` is one step of it from beginning to end."""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from npukit.errors import NpukitError
from npukit.precision import capture
from npukit.precision.features import FeatureDetector
from npukit.train.blocks import checkpoint_activations
from npukit.train.checkpoint import Checkpoint, Checkpoints, refuse_different, written_into
from npukit.train.claim import claim
from npukit.train.data import Batch, Collate, Data, Position, Split, Weight, row_indices, with_stand_ins
from npukit.train.defaults import rows, save_weights
from npukit.train.evaluation import Best, Metrics, check_best, evaluate
from npukit.train.fetch import fetch
from npukit.train.loss import Loss, scalar_loss
from npukit.train.nonfinite import refuse_nonfinite_gradient, refuse_nonfinite_loss
from npukit.train.optimizer import Groups
from npukit.train.options import TrainOptions
from npukit.train.profile import StepProfiler
from npukit.train.remembered import may_change
from npukit.train.remembered import must_stay as _must_stay
from npukit.train.rollouts import Rollouts
from npukit.train.schedule import Schedule
from npukit.train.state import load_random_state, random_state
from npukit.train.trouble import HangWatch, StopSignals, explain_out_of_memory, explain_unused
from npukit.train.watch import Summary, Watch
from npukit.train.zero import make_parallel

NOTHING: Mapping[str, Any] = {}
STOPPED = "stopped by a signal; run the same command again to resume"
SaveModel = Callable[[nn.Module, dict[str, Tensor], Path], None]


class Trainer:
    """Trains any model on any data, on the device of this process or on those of all processes of a launch.

    `loss(model, batch)` is the mean loss of a batch, optionally with a mapping of further means to log. `weight(batch)`
    is the number of items in that mean: however the items of a step are split into batches and ranks, its gradient is
    that of the mean over all of them. Speed is counted in these items, or in those of `size(batch)`.
    `metrics(model, batch)` are the means that evaluation reports, by default the loss. With `eval_collate`, its batches
    are lists that this function makes of rows, and their items are counted.
    `save_model(model, weights, folder)` writes the model; without `save_frozen`, weights are the trainable ones only.
    Checkpoints contain `must_stay` and `noted`: a run cannot resume with another value of the first, and logs another
    value of the second.
    With `rollouts`, the batches of a step are not rows of the data but what the present model generates from them.

    >>> trainer = Trainer(model, TrainOptions(epochs=3), data, loss=lambda model, batch: model(**batch).loss)
    >>> summary = trainer.train()
    """

    def __init__(
        self,
        model: nn.Module,
        options: TrainOptions,
        train_data: Any,
        eval_data: Any = None,
        *,
        loss: Loss,
        weight: Weight = rows,
        size: Weight | None = None,
        collate: Collate = default_collate,
        metrics: Metrics | None = None,
        eval_collate: Callable[[list[Any]], list[Any]] | None = None,
        save_model: SaveModel = save_weights,
        save_frozen: bool = True,
        parameter_groups: Groups | None = None,
        flops_per_item: float | None = None,
        item: str = "rows",
        must_stay: Mapping[str, Any] = NOTHING,
        noted: Mapping[str, Any] = NOTHING,
        rollouts: Rollouts | None = None,
    ) -> None:
        self.options = options
        self.parallel = parallel = make_parallel(options)
        self._loss = scalar_loss(loss)
        self._metrics = metrics or self._loss_and_figures
        self._save_model = save_model
        self._save_frozen = save_frozen
        self.step = 0
        # A context around the computation of a step's gradients; it is called with the number of the step.
        self.around_step: Callable[[int], AbstractContextManager[Any]] = nullcontext
        self._position = Position()
        self._best = Best()
        self._written_step: int | None = None  # the step whose model is in the output folder
        self._steps: Iterator[list[Batch]] = iter(())
        self._batches: list[Batch] = []  # of the present step
        self._rollouts = rollouts
        batching: dict[str, Any] = {"collate": collate, "weight": weight, "size": size}
        self._data = self._make_train_data(train_data, batching)
        self._eval_data = None
        if eval_data is not None:
            own: dict[str, Any] = {"collate": eval_collate, "weight": len, "size": len} if eval_collate else batching
            self._eval_data = self._make_eval_data(eval_data, own)
        check_best(options, eval_data is not None, metrics is not None)
        self.total_steps = self._total_steps()
        options = self.options = options.in_steps(self.total_steps)
        if options.activation_checkpointing:
            checkpoint_activations(model)
        if options.compile:
            model.forward = torch.compile(model.forward)  # model.compile() has no effect on nn.Sequential
        with self._explaining():
            parallel.prepare(model, parameter_groups)
        detection = options.feature_detection.with_environment()
        self._features = FeatureDetector(
            parallel.module, parallel.dtype, parallel.rank, detection.jump, detection.action == "stop", detection.enable
        )
        self._schedule = Schedule(parallel.optimizer, options, self.total_steps)
        fixed = {**must_stay, **_must_stay(options, parallel.world_size, self._data.steps_per_epoch)}
        self._checkpoints = Checkpoints(options, parallel.rank, fixed, {**may_change(options), **noted})
        self._watch = Watch(
            options, parallel.is_main, parallel.world_size, self.total_steps, flops_per_item, item, parallel.device
        )
        self._grad_norm = torch.zeros((), device=parallel.device)

    def _make_train_data(self, rows: Any, batching: Mapping[str, Any]) -> Data:
        options, parallel, rollouts = self.options, self.parallel, self._rollouts
        if rollouts:
            split = Split(rollouts.rows(parallel.world_size), 1, 0, 1)
        else:
            split = Split(options.batch_size, options.accumulation, parallel.reader, parallel.readers)
        repeats = rollouts.repeats if rollouts else 1
        return self._make_data(rows, split, shuffle=options.shuffle, repeats=repeats, **batching)

    def _make_eval_data(self, rows: Any, batching: Mapping[str, Any]) -> Data:
        size = self.options.eval_batch_size or self.options.batch_size
        split = Split(size, 1, self.parallel.reader, self.parallel.readers)
        return self._make_data(rows, split, epochs=1, **batching)

    def _make_data(self, rows: Any, split: Split, **others: Any) -> Data:
        options = self.options
        return Data(rows, split, self.parallel.device, seed=options.seed, workers=options.workers, **others)

    def train(self) -> Summary:
        """Train to the end, starting from the newest checkpoint if there is one; returns the summary of the run."""
        with claim(self.options.output) if self.parallel.is_main else nullcontext():
            self.parallel.wait()  # no rank reads before the folder is claimed
            try:
                return self._train()
            finally:
                if self._rollouts:
                    self._rollouts.end()

    def _train(self) -> Summary:
        options, parallel = self.options, self.parallel
        parallel.model.train()
        if self._rollouts:
            self._rollouts.begin(parallel)
        self._begin()
        reason, stopped_by = self._stopped_early(), 0
        with ExitStack() as stack:
            stack.push(self._log_failure)
            stack.callback(self._checkpoints.finish)
            stack.callback(self._stop_workers)
            stack.enter_context(self._explaining())
            self._signals = stack.enter_context(StopSignals(announce=parallel.is_main))
            self._hang = stack.enter_context(HangWatch(options, parallel.rank, parallel.world_size))
            if options.capture:
                first, last = options.capture.steps
                level, tensors = options.capture.level, options.capture.tensors
                stack.enter_context(
                    capture(options.output / "precision", level, range(first, last + 1), tensors=tensors)
                )
            profiler = stack.enter_context(StepProfiler(options, parallel.device, parallel.rank, self.step))
            while self.step < self.total_steps and not reason:
                must_stop = self._train_step()
                profiler.step()
                self._hang.beat(self.step)
                last = self.step == self.total_steps
                better = self._eval_data is not None and (last or self._due(options.eval_every)) and self._evaluate()
                if must_stop and not last:
                    stopped_by = self._signals.number or signal.SIGTERM  # another rank may have got the signal
                reason = STOPPED if stopped_by else self._stopped_early()
                if stopped_by or (options.save_every and (better or last or reason or self._due(options.save_every))):
                    self._save()
        if not stopped_by:
            self._write_model()
        parallel.leave()
        return self._finish(reason or "finished", 128 + stopped_by if stopped_by else 0)

    def _train_step(self) -> bool:
        """One step of the optimizer. Returns whether any rank got a signal to stop."""
        parallel = self.parallel
        start = time.perf_counter()
        previous_rows = row_indices(self._batches)
        self._batches = []  # free them: those of two steps need not fit into memory
        self._batches = next(self._steps)
        data_wait = time.perf_counter() - start
        if self._rollouts:
            self._batches = self._rollouts.batches(self.step, self._batches[0])
        learning_rate = self._schedule.set(self.step)

        # Summed over all ranks: the weight and size of the step, and whether a rank got a signal to stop.
        shared = torch.zeros(3, device=parallel.device)
        shared[0] += sum(batch.weight for batch in self._batches)
        shared[1] += sum(batch.size for batch in self._batches) / self.options.sequence_parallel
        shared[2] += self._signals.requested
        parallel.sum(shared)
        per_item = parallel.world_size / shared[0].clamp(min=1)
        loss = torch.zeros((), device=parallel.device)
        figures: dict[str, Tensor] = {}
        with self.around_step(self.step):
            for batch in with_stand_ins(self._batches):
                content = parallel.move(batch.content)
                with parallel.exchanging(gradients=batch.ends_step):
                    with parallel.autocast():
                        mean, more_means = self._loss(parallel.model, content)
                        share = mean * (batch.weight * per_item)
                    loss += share.detach()
                    for name, figure in more_means.items():
                        figures[name] = figures.get(name, 0) + figure.detach() * (batch.weight * per_item)
                    if batch.ends_step:
                        # Copied to the host while the device computes the backward pass.
                        loss, *means = parallel.sum(torch.stack([loss, *figures.values()])) / parallel.world_size
                        fetched = fetch(torch.stack([loss, *shared, self._grad_norm]))
                    parallel.backward(share)
        loss_value, _, items, stop, previous_norm = fetched()
        refuse_nonfinite_gradient(parallel, self.step, previous_norm, previous_rows)
        refuse_nonfinite_loss(parallel, self.step + 1, loss_value, self._loss_alone, self._batches)
        self._features.check(self.step + 1, parallel.loss_scale)
        norm = parallel.update()

        self.step += 1
        self._grad_norm = torch.as_tensor(norm, device=parallel.device, dtype=torch.float32)
        self._position = self._position.after(self._batches[-1].ends_epoch)
        logged = {**(self._rollouts.figures if self._rollouts else {}), **dict(zip(figures, means, strict=True))}
        if self._watch.step(self.step, self._epoch(), loss, norm, learning_rate, round(items), data_wait, logged):
            self._log_anomalies()
        return stop > 0

    def _loss_and_figures(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        loss, figures = self._loss(model, batch)
        return {"loss": loss, **figures}

    def _loss_alone(self, model: nn.Module, batch: Any) -> Tensor:
        return self._loss(model, batch)[0]

    def _log_anomalies(self) -> None:
        """Log what feature detection found in the gradients of the last steps, or raise it."""
        for sentence in self._features.read():
            self._watch.note(self.step, sentence)

    def _log_failure(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, NpukitError):
            error.on_the_way = True
        if error is not None and self.step:
            with suppress(OSError):  # the first error matters more than a full disk
                self._finish(f"failed after step {self.step}", 1)

    def _finish(self, reason: str, exit_code: int) -> Summary:
        best, folder = self._best.describe(self.options.best_metric), self._checkpoints.best
        return self._watch.finish(reason, exit_code, best, str(folder) if folder else None, self._written_step)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            parallel, batch = self.parallel, self._batches[0].content if self._batches else None
            explained = explain_unused(error, parallel.module) or explain_out_of_memory(
                error, self.options, parallel.module, parallel.device, parallel.world_size, batch, self.step + 1
            )
            if explained is None:
                raise
            raise explained from error

    def _total_steps(self) -> int:
        options = self.options
        if options.max_steps:
            return options.max_steps
        if self._data.steps_per_epoch is None:
            raise NpukitError("The length of the data set is unknown: set max_steps.")
        return math.ceil(self._data.steps_per_epoch * options.epochs)

    def _begin(self) -> None:
        """Resume from a checkpoint, or start over."""
        parallel, checkpoints = self.parallel, self._checkpoints
        checkpoint = checkpoints.newest()
        # After this all ranks have looked, and the main rank can tidy up.
        refuse_different(parallel.gather(checkpoint.step if checkpoint else 0), self.options.output)
        if parallel.is_main:
            checkpoints.tidy(checkpoint.step if checkpoint else 0)
        parallel.wait()
        if checkpoint is None:
            seed = self.options.seed + parallel.rank
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        else:
            state = self._load(checkpoint)
            self.step, self._position = checkpoint.step, Position(**state["position"])
            self._best = Best(**state["best"])
            checkpoints.best_step = self._best.step
            self._watch.load_state_dict(state["watch"])
            load_random_state(state["random"], parallel.device)
        if self._rollouts:
            self._rollouts.load_state_dict(self.step, state["rollouts"] if checkpoint else {})
        self._steps = self._data.steps(self._position)
        changes = checkpoints.changes_since(checkpoint) if checkpoint else []
        self._watch.began(self.step, checkpoint.folder if checkpoint else None, str(parallel.precision), changes)

    def _stop_workers(self) -> None:
        self._steps = iter(())
        for data in filter(None, (self._data, self._eval_data)):
            data.end_workers()

    def _load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Restore the model and its optimizer; returns the rest of this rank's state."""
        parallel, state = self.parallel, checkpoint.load(self.parallel.rank)
        parallel.load(checkpoint.folder, (state if parallel.sharded else checkpoint.load(0))["parallel"])
        return state

    def _refuse_damaged(self) -> None:
        """Do not save weights that faulty hardware has damaged."""
        self._log_anomalies()
        refuse_nonfinite_gradient(self.parallel, self.step, float(self._grad_norm), row_indices(self._batches))

    def _save(self) -> None:
        self._refuse_damaged()
        self._checkpoints.save(self.step, self._fill, partial(self._watch.saved, self.step))

    def _fill(self, folder: Path) -> Callable[[], None]:
        parallel = self.parallel
        weights = parallel.full_state_dict(self._save_frozen)
        state = {
            "parallel": parallel.save(folder, weights),
            "position": asdict(self._position),
            "best": asdict(self._best),
            "watch": self._watch.state_dict(),
            "random": random_state(parallel.device),
            "rollouts": self._rollouts.state_dict(self.step) if self._rollouts else {},
        }

        def write() -> None:
            with (folder / f"rank-{parallel.rank}.pt").open("wb") as file:  # torch's own error would not say why
                torch.save(state, file)
            if parallel.is_main:
                self._save_model(parallel.module, weights, folder)

        return write

    def _evaluate(self) -> bool:
        """Evaluate; returns whether this was the best evaluation so far."""
        assert self._eval_data is not None
        try:
            metrics = evaluate(self.parallel, self._eval_data, self._metrics, lambda: self._hang.beat(self.step))
            self._watch.evaluated(self.step, metrics)
            better = self._best.is_better(self.options, self.step, metrics)
        except Exception as error:
            if self.parallel.world_size == 1 or isinstance(error, NpukitError):  # all ranks have failed
                self._save()  # so that the training is not lost
            raise
        self._checkpoints.best_step = self._best.step
        return better

    def _stopped_early(self) -> str:
        if self.options.max_epochs and self._position.epoch >= self.options.max_epochs:
            return f"reached max_epochs ({self.options.max_epochs})"
        patience = self.options.early_stopping
        if patience is None or self._best.worse_since < patience:
            return ""
        when = f"was best at step {self._best.step}" if self._best.step else "was never a number"
        return f"stopped early: {self.options.best_metric} {when}"

    def _due(self, every: float | str | None) -> bool:
        if every == "epoch":
            return self._position.step == 0
        return isinstance(every, int) and self.step % every == 0

    def _epoch(self) -> float:
        return self._position.epoch + self._position.step / (self._data.steps_per_epoch or math.inf)

    def _write_model(self) -> None:
        self._refuse_damaged()
        self._written_step = self.step
        if self.options.load_best and self._best.step not in (None, self.step):
            self._load(self._checkpoints.read_best())
            self._written_step = self._best.step
        weights = self.parallel.full_state_dict(self._save_frozen)
        if self.parallel.is_main:
            with written_into(self.options.output) as folder:
                self._save_model(self.parallel.module, weights, folder)
        self.parallel.wait()
