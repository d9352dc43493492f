"""The training loop: everything that happens in a step can be read in `Trainer._train_step`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import find_batch_size, send_to_device
from torch import Tensor, nn
from torch.utils.data import default_collate

from npukit.errors import NpukitError
from npukit.train.data import Collate, Data, Position, Split, Weight
from npukit.train.optimizer import Groups
from npukit.train.options import TrainOptions
from npukit.train.parallel import Parallel
from npukit.train.schedule import Schedule
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
        save_model: SaveModel = save_weights,
        parameter_groups: Groups | None = None,
        flops_per_item: float | None = None,
        item: str = "rows",
    ) -> None:
        self.options = options
        self.parallel = Parallel(options)
        self._loss = loss
        self._save_model = save_model
        split = Split(options.batch_size, options.accumulation, self.parallel.rank, self.parallel.world_size)
        making: dict[str, Any] = {"collate": collate, "weight": weight, "seed": options.seed}
        self._data = Data(
            train_data, split, self.parallel.device, shuffle=options.shuffle, workers=options.workers, **making
        )
        self.total_steps = self._total_steps()
        torch.manual_seed(options.seed + self.parallel.rank)
        self.parallel.prepare(model, parameter_groups)
        self._schedule = Schedule(self.parallel.optimizer.param_groups, options, self.total_steps)
        self._watch = Watch(
            options, self.parallel.is_main, self.parallel.world_size, self.total_steps, flops_per_item, item
        )
        self.step = 0
        self._position = Position()

    def _total_steps(self) -> int:
        if self._data.steps_per_epoch is None:
            if self.options.max_steps is None:
                raise NpukitError("The length of the data set is not known: say with max_steps how long to train.")
            return self.options.max_steps
        steps = math.ceil(self._data.steps_per_epoch * self.options.epochs)
        return min(steps, self.options.max_steps or steps)

    def train(self) -> Summary:
        """Train to the end; returns what a person wants to know of the run."""
        self.parallel.model.train()
        self._watch.began(self.step)
        self._steps = self._data.steps(self._position)
        while self.step < self.total_steps:
            self._train_step()
        self._write_model(self.options.output)
        self.parallel.leave()
        return self._watch.finish("finished")

    def _train_step(self) -> None:
        parallel = self.parallel
        asked = time.perf_counter()
        batches = next(self._steps)
        data_wait = time.perf_counter() - asked
        learning_rate = self._schedule.set(self.step)

        items = parallel.sum(torch.full((), sum(batch.weight for batch in batches), device=parallel.device))
        loss = torch.zeros((), device=parallel.device)
        for batch in batches:
            content = send_to_device(batch.content, parallel.device, non_blocking=True)
            with parallel.exchanging(gradients=batch.ends_step):
                with parallel.autocast():
                    share = self._loss(parallel.model, content) * (batch.weight * parallel.world_size / items)
                loss += share.detach()
                parallel.backward(share, batch.ends_step)
        loss = parallel.sum(loss) / parallel.world_size
        grad_norm = parallel.update()

        self.step += 1
        self._position = self._position.after(batches[-1].ends_epoch)
        self._watch.step(self.step, self._epoch(), loss, grad_norm, learning_rate, int(items), data_wait)

    def _epoch(self) -> float:
        return self._position.epoch + self._position.step / (self._data.steps_per_epoch or math.inf)

    def _write_model(self, folder: Path) -> None:
        state = self.parallel.full_state_dict()
        if self.parallel.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            self._save_model(self.parallel.module, state, folder)
        self.parallel.wait()
