"""Preferences: pairs of answers (DPO and its variants, reward models), or answers labelled good or bad (KTO)."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from npukit.llm.config.options import Config, DataOptions
from npukit.llm.data.pairs import lay_out_marked, lay_out_pair
from npukit.llm.data.row import Layout, Row
from npukit.llm.tasks.task import Learning, Log, Task


class Preference(Task):
    """What the three tasks share: an item has two answers to a question, and only answers count in the loss."""

    verb = "rlhf"
    adds_mismatched: ClassVar[bool] = False  # whether every question is also used with the next row's answer
    uses: ClassVar[frozenset[str]] = frozenset({"chat", "preference"})

    def data_options(self, data: DataOptions) -> DataOptions:
        return data.model_copy(update={"packing": False, "last_answer_only": True})

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        return lay_out_pair(row, layout)

    def can_join(self, config: Config) -> bool:
        return config.preference.sft_mean != "all"

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        from npukit.llm.models.forward import return_loss

        return_loss(model, config.model.balance_experts, None)

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        from npukit.llm.data.collate import tokens
        from npukit.llm.tasks.losses.preference import PairCollator, Pairs, pairs_in

        given = (train, validation)
        train, validation = (rows if rows is None else Pairs(rows, self.adds_mismatched) for rows in given)
        pairs = PairCollator(collate, config.data.cutoff)
        return Learning(train, validation, pairs, self.loss(config), pairs_in, partial(tokens, pad_id=collate.pad_id))

    def loss(self, config: Config) -> Any:
        """Return the mean loss of a batch of pairs."""
        raise NotImplementedError

    def needs_reference(self, config: Config) -> bool:
        """Return whether the loss needs the reference model's log-probabilities."""
        return False

    def before_training(self, learning: Learning, trainer: Any, config: Config, log: Log) -> None:
        from npukit.llm.tasks.losses.preference import add_references

        if self.needs_reference(config):
            add_references(learning, trainer.parallel, config.training, log)


class DPO(Preference):
    """Makes the chosen answer likelier than the rejected one."""

    name = "dpo"
    summary = "preference pairs (dpo and its variants)"
    rows_per_item = 2
    columns_tell = True

    def loss(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.preference import MovingMean, pair_loss

        moving = MovingMean() if "bco_pair" in config.preference.mix else None
        return partial(pair_loss, options=config.preference, moving=moving)

    def needs_reference(self, config: Config) -> bool:
        from npukit.llm.tasks.losses.preference import WITHOUT_REFERENCE

        return config.preference.loss not in WITHOUT_REFERENCE


class KTO(Preference):
    """Makes good answers likelier than under the reference model, and bad ones less likely."""

    name = "kto"
    summary = "answers marked good or bad (kto)"
    adds_mismatched = True

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        return lay_out_marked(row, layout)

    def loss(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.preference import marked_loss

        return partial(marked_loss, options=config.preference)

    def needs_reference(self, config: Config) -> bool:
        return True


class RewardModel(Preference):
    """Scores the chosen answer higher."""

    name = "rm"
    summary = "a reward model from pairs (rm)"
    rows_per_item = 2
    columns_tell = True

    def can_join(self, config: Config) -> bool:
        return False

    def new_layer(self, config: Config) -> int:
        return 1

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        """Make the model return the scores of its new layer."""

    def loss(self, config: Config) -> Any:
        from npukit.llm.tasks.losses.preference import reward_loss

        return reward_loss


TASKS = (DPO(), KTO(), RewardModel())
