"""Changes to a model between training steps: layers in turns (LISA, BAdam) and ranks of adapters (AdaLoRA)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.train import Trainer
from npukit.train.blocks import blocks


def follow(trainer: Trainer, config: Config) -> None:
    """Set up the trainer for a tuning method that changes the model between steps."""
    if config.tuning.turns:
        trainer.around_step = Turns(trainer, config)
    if config.tuning.method == "adalora":
        _allocate_ranks(trainer)


class Turns:
    """Trains some layers of a model for a number of steps, then others.

    LISA chooses layers at random and also trains everything outside the layers. BAdam trains one layer at a time and
    keeps Adam's state for this layer only. The choice depends on nothing but the step, so that a run can resume.
    """

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self._options, self._seed = config.tuning, config.training.seed
        self._optimizer, self._layers = trainer.parallel.optimizer, blocks(trainer.parallel.module)
        if self._options.turn_layers > len(self._layers):
            raise NpukitError(f"tuning.turn_layers is more than the {len(self._layers)} layers of this model.")

    @contextmanager
    def __call__(self, step: int) -> Iterator[None]:
        """Train only this step's layers. All are trainable again afterwards, as checkpoints expect."""
        chosen = self.chosen(step)
        for number, layer in enumerate(self._layers):
            layer.requires_grad_(number in chosen)
            if self._options.turns == "badam" and number not in chosen:
                for parameter in layer.parameters():
                    self._optimizer.state.pop(parameter, None)
        try:
            yield
        finally:
            for layer in self._layers:
                layer.requires_grad_(True)

    def chosen(self, step: int) -> list[int]:
        """Return the indices of the layers that are trained in a step."""
        options, count = self._options, len(self._layers)
        if options.turns == "lisa":
            return random.Random(f"{self._seed} {step // options.turn_steps}").sample(range(count), options.turn_layers)
        turn = (step + 1) // options.turn_steps  # as in the BAdam package, whose first turn is one step shorter
        if options.turn_order == "random":
            order = list(range(count))
            random.Random(f"{self._seed} {turn // count}").shuffle(order)
            return [order[turn % count]]
        place = turn % count
        return [place if options.turn_order == "ascending" else count - 1 - place]


def _allocate_ranks(trainer: Trainer) -> None:
    """Remove the least important ranks of an AdaLoRA adapter after every step, judged by their gradients."""
    adapted: Any = trainer.parallel.module
    wanted, steps = adapted.peft_config["default"], trainer.total_steps
    if wanted.tinit >= steps - wanted.tfinal:
        raise NpukitError(f"tuning.peft: tinit and tfinal leave none of the {steps} steps to choose ranks in.")
    wanted.total_step = steps
    adapted.base_model.rankallocator.set_total_step(steps)
    trainer.parallel.optimizer.register_step_post_hook(
        lambda *_: adapted.base_model.update_and_allocate(trainer.step + 1)
    )
