"""The training loop: everything that happens in a step can be read in `Trainer._train_step`."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import find_batch_size
from torch import Tensor, nn
from torch.utils.data import default_collate

from npukit.errors import NpukitError
from npukit.train.blocks import checkpoint_activations
from npukit.train.checkpoint import Checkpoints, written_into
from npukit.train.data import Batch, Collate, Data, Position, Split, Weight
from npukit.train.evaluation import Best, Metrics, evaluate
from npukit.train.fetch import fetch
from npukit.train.optimizer import Groups
from npukit.train.options import TrainOptions
from npukit.train.parallel import Parallel
from npukit.train.profile import StepProfiler
from npukit.train.schedule import Schedule
from npukit.train.state import load_random_state, random_state
from npukit.train.trouble import HangWatch, StopSignals, explain_out_of_memory, first_nonfinite, is_out_of_memory
from npukit.train.watch import Summary, Watch

Loss = Callable[[nn.Module, Any], Tensor]
SaveModel = Callable[[nn.Module, dict[str, Tensor], Path], None]


def rows(batch: Any) -> int:
    """How many rows a batch has: the default weight of its loss."""
    return int(find_batch_size(batch))


def save_weights(model: nn.Module, state: dict[str, Tensor], folder: Path) -> None:
    """The default way to write a model: its weights as safetensors, names that share one tensor as one."""
    from safetensors.torch import save_file

    own = {value.data_ptr(): name for name, value in reversed(state.items())}
    save_file({name: state[name].contiguous() for name in sorted(own.values())}, folder / "model.safetensors")


class Trainer:
    """Trains any model on any data, on the devices that this process, or all processes of a launch, are given.

    `loss(model, batch)` is the mean loss of a batch, `weight(batch)` the number of items that mean is over: however
    the items of a step are split into batches and ranks, the step follows the gradient of the mean over all of them.

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
        collate: Collate = default_collate,
        metrics: Metrics | None = None,
        save_model: SaveModel = save_weights,
        parameter_groups: Groups | None = None,
        flops_per_item: float | None = None,
        item: str = "rows",
    ) -> None:
        self.options = options
        self.parallel = parallel = make_parallel(options)
        self._loss = loss
        self._metrics = metrics or (lambda model, batch: {"loss": loss(model, batch)})
        self._save_model = save_model
        making: dict[str, Any] = {
            "device": parallel.device,
            "collate": collate,
            "weight": weight,
            "seed": options.seed,
            "workers": options.workers,
        }
        split = Split(options.batch_size, options.accumulation, parallel.rank, parallel.world_size)
        self._data = Data(train_data, split, shuffle=options.shuffle, **making)
        self._eval_data = None
        if eval_data is not None:
            split = Split(options.eval_batch_size or options.batch_size, 1, parallel.rank, parallel.world_size)
            self._eval_data = Data(eval_data, split, epochs=1, **making)
        self.total_steps = self._total_steps()
        if options.activation_checkpointing:
            checkpoint_activations(model)
        if options.compile:
            model.compile()
        parallel.prepare(model, parameter_groups)
        self._schedule = Schedule(parallel.optimizer, options, self.total_steps)
        self._checkpoints = Checkpoints(options, parallel.rank, self._must_stay())
        self._watch = Watch(options, parallel.is_main, parallel.world_size, self.total_steps, flops_per_item, item)
        self._best = Best()
        self.step = 0
        self._position = Position()
        self._steps: Iterator[list[Batch]] = iter(())
        self._grad_norm = torch.zeros((), device=parallel.device)  # of the last step
        self._numbers: list[int] = []  # of its rows

    def train(self) -> Summary:
        """Train to the end, from the newest checkpoint if there is one; returns what a person wants to know of it."""
        options, parallel = self.options, self.parallel
        parallel.model.train()
        self._begin()
        reason, stop = "", False
        with ExitStack() as around:
            self._signals = around.enter_context(StopSignals(tell=parallel.is_main))
            self._hang = around.enter_context(HangWatch(options, parallel.rank, parallel.world_size))
            profiler = around.enter_context(StepProfiler(options, parallel.device, parallel.rank, self.step))
            while self.step < self.total_steps and not reason:
                stop = self._guarded_step()
                profiler.step()
                self._hang.beat(self.step)
                last = self.step == self.total_steps
                better = self._eval_data is not None and (last or self._due(options.eval_every)) and self._evaluate()
                if stop:
                    reason = "stopped by a signal"
                elif options.early_stopping and self._best.worse_since >= options.early_stopping:
                    reason = f"stopped early: {options.best_metric} was best at step {self._best.step}"
                if stop or (options.save_every and (better or last or reason or self._due(options.save_every))):
                    self._save()
            self._checkpoints.finish()
        if not stop:
            self._write_model()
        parallel.leave()
        return self._watch.finish(reason or "finished")

    def _train_step(self) -> bool:
        """One step of the optimizer. Returns whether any rank was told to stop."""
        parallel = self.parallel
        asked = time.perf_counter()
        batches = next(self._steps)
        data_wait = time.perf_counter() - asked
        learning_rate = self._schedule.set(self.step)

        # What all ranks must know of each other: how many items the step has, and whether somebody should stop.
        shared = torch.zeros(2, device=parallel.device)
        shared[0] += sum(batch.weight for batch in batches)
        shared[1] += self._signals.requested
        parallel.sum(shared)
        per_item = parallel.world_size / shared[0].clamp(min=1)
        loss = torch.zeros((), device=parallel.device)
        for batch in batches:
            content = parallel.move(batch.content)
            with parallel.exchanging(gradients=batch.ends_step):
                with parallel.autocast():
                    share = self._loss(parallel.model, content) * (batch.weight * per_item)
                loss += share.detach()
                if batch.ends_step:
                    # On its way to the host while the device computes the backward pass.
                    loss = parallel.sum(loss) / parallel.world_size
                    figures = fetch(torch.stack([loss, *shared, self._grad_norm]))
                parallel.backward(share, batch.ends_step)
        value, items, stop, norm_before = figures()
        self._refuse_nonfinite(value, norm_before, batches)
        norm = parallel.update()
        self._grad_norm = torch.as_tensor(norm, device=parallel.device, dtype=torch.float32)

        self.step += 1
        self._numbers = [number for batch in batches for number in batch.numbers]
        self._position = self._position.after(batches[-1].ends_epoch)
        self._watch.step(self.step, self._epoch(), loss, norm, learning_rate, int(items), data_wait)
        return stop > 0

    def _guarded_step(self) -> bool:
        try:
            return self._train_step()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            parallel = self.parallel
            about = (self.options, parallel.module, parallel.device, parallel.world_size, None, self.step + 1)
            raise explain_out_of_memory(error, *about) from error

    def _refuse_nonfinite(self, loss: float, norm_before: float, batches: list[Batch]) -> None:
        """Stop before the optimizer spoils the weights. A gradient that did is found out one step later."""
        if not math.isfinite(norm_before) and self.parallel.scaler is None:
            raise NpukitError(
                f"The gradient of step {self.step} is {norm_before}, though its loss was finite (rows "
                f"{_list(self._numbers)} of the data on rank {self.parallel.rank}); the weights are spoilt. Go on from "
                "the last checkpoint with a lower learning_rate, or with precision: fp32."
            )
        if math.isfinite(loss):
            return
        for batch in batches:
            content = self.parallel.move(batch.content)
            found = first_nonfinite(self.parallel.module, self._loss_again, content)
            if not found.startswith("Computed once more") or batch.ends_step:
                break
        raise NpukitError(
            f"The loss is {loss} at step {self.step + 1}. Rank {self.parallel.rank}, rows {_list(batch.numbers)} "
            f"of the data: {found}"
        )

    def _loss_again(self, model: nn.Module, content: Any) -> Tensor:
        with self.parallel.autocast():
            loss = self._loss(model, content)
        # Ranks that share weights must not go backward alone.
        return loss.detach().requires_grad_() if self.parallel.sharded else loss

    def _total_steps(self) -> int:
        options = self.options
        if options.early_stopping and not options.eval_every:
            raise NpukitError("early_stopping counts evaluations: say with eval_every when to make them.")
        if options.eval_every and self._eval_data is None:
            raise NpukitError("eval_every is set, but there is no data to evaluate on.")
        if self._data.steps_per_epoch is None:
            if options.max_steps is None:
                raise NpukitError("The length of the data set is not known: say with max_steps how long to train.")
            return options.max_steps
        steps = math.ceil(self._data.steps_per_epoch * options.epochs)
        return min(steps, options.max_steps or steps)

    def _must_stay(self) -> dict[str, Any]:
        """What a checkpoint and the run that goes on from it must have in common."""
        names = ("batch_size", "accumulation", "seed", "shuffle", "optimizer")
        chosen = {name: getattr(self.options, name) for name in names}
        return {
            "world_size": self.parallel.world_size,
            "parallel": str(self.options.parallel),
            "steps_per_epoch": self._data.steps_per_epoch,
            **chosen,
        }

    def _begin(self) -> None:
        """Go on from a checkpoint, or begin anew."""
        parallel, checkpoints = self.parallel, self._checkpoints
        found = checkpoints.newest()
        parallel.wait()  # nobody looks any more when the main rank tidies up
        if parallel.is_main:
            checkpoints.tidy(found.step if found else 0)
        parallel.wait()
        if found is None:
            seed = self.options.seed + parallel.rank
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        else:
            state = found.load(parallel.rank)
            parallel.load(found.folder, (state if parallel.sharded else found.load(0))["parallel"])
            self.step, self._position, self._best = found.step, Position(**state["position"]), Best(**state["best"])
            checkpoints.best_step = self._best.step
            self._watch.load_state_dict(state["watch"])
            load_random_state(state["random"], parallel.device)
        self._steps = self._data.steps(self._position)
        self._watch.began(self.step)

    def _save(self) -> None:
        self._refuse_nonfinite(0.0, float(self._grad_norm), [])
        self._checkpoints.save(self.step, self._fill, lambda folder: self._watch.saved(self.step, folder))

    def _fill(self, folder: Path) -> Callable[[], None]:
        parallel = self.parallel
        state = {
            "parallel": parallel.save(folder),
            "position": asdict(self._position),
            "best": asdict(self._best),
            "watch": self._watch.state_dict(),
            "random": random_state(parallel.device),
        }
        weights = parallel.full_state_dict()

        def write() -> None:
            torch.save(state, folder / f"rank-{parallel.rank}.pt")
            if parallel.is_main:
                self._save_model(parallel.module, weights, folder)

        return write

    def _evaluate(self) -> bool:
        """Whether this was the best evaluation so far."""
        assert self._eval_data is not None
        found = evaluate(self.parallel, self._eval_data, self._metrics, lambda: self._hang.beat(self.step))
        self._watch.evaluated(self.step, found)
        better = self._best.is_better(self.options, self.step, found)
        self._checkpoints.best_step = self._best.step
        return better

    def _due(self, every: int | str | None) -> bool:
        if every == "epoch":
            return self._position.step == 0
        return isinstance(every, int) and self.step % every == 0

    def _epoch(self) -> float:
        return self._position.epoch + self._position.step / (self._data.steps_per_epoch or math.inf)

    def _write_model(self) -> None:
        weights = self.parallel.full_state_dict()
        if self.parallel.is_main:
            with written_into(self.options.output) as folder:
                self._save_model(self.parallel.module, weights, folder)
        self.parallel.wait()


def make_parallel(options: TrainOptions) -> Parallel:
    if options.parallel in ("ddp", "fsdp2"):
        return Parallel(options)
    from npukit.train.zero import Zero

    return Zero(options)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
