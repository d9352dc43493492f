"""Changes of a model during training: layers in turns (LISA, BAdam), ranks of adapters (AdaLoRA)."""

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
    """Make the trainer apply the changes that the tuning method needs between steps."""
    if config.tuning.turns:
        trainer.around_step = Turns(trainer, config)
    if config.tuning.method == "adalora":
        _allocate_ranks(trainer)


class Turns:
    """Trains some layers of a model for a number of steps, then others.

    LISA draws them at random and always trains everything outside the layers. BAdam takes them one by one, with Adam's
    state for one only. The step alone decides which layers are trained, so that a run can resume.
    """

    def __init__(self, trainer: Trainer, config: Config) -> None:
        self._options, self._seed = config.tuning, config.training.seed
        self._optimizer, self._layers = trainer.parallel.optimizer, blocks(trainer.parallel.module)
        if self._options.turn_layers > len(self._layers):
            raise NpukitError(f"tuning.turn_layers is more than the {len(self._layers)} layers of this model.")

    @contextmanager
    def __call__(self, step: int) -> Iterator[None]:
        """Train only the layers of this step. Outside the context all are trainable, as a checkpoint needs them."""
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
        """The indices of the layers that are trained in a step."""
        options, count = self._options, len(self._layers)
        if options.turns == "lisa":
            return random.Random(f"{self._seed} {step // options.turn_steps}").sample(range(count), options.turn_layers)
        turn = (step + 1) // options.turn_steps  # the package's first turn is a step shorter, too
        if options.turn_order == "random":
            order = list(range(count))
            random.Random(f"{self._seed} {turn // count}").shuffle(order)
            return [order[turn % count]]
        place = turn % count
        return [place if options.turn_order == "ascending" else count - 1 - place]


def _allocate_ranks(trainer: Trainer) -> None:
    """AdaLoRA: after every step, remove ranks where the gradients show that they matter least."""
    adapted: Any = trainer.parallel.module
    wanted, steps = adapted.peft_config["default"], trainer.total_steps
    if wanted.tinit >= steps - wanted.tfinal:
        raise NpukitError(f"tuning.peft: tinit and tfinal leave none of the {steps} steps to choose ranks in.")
    wanted.total_step = steps
    adapted.base_model.rankallocator.set_total_step(steps)
    trainer.parallel.optimizer.register_step_post_hook(
        lambda *_: adapted.base_model.update_and_allocate(trainer.step + 1)
    )
