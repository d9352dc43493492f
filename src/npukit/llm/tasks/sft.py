"""Supervised fine-tuning: the loss of the answers in conversations."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.data.layout import lay_out
from npukit.llm.data.row import Layout, Row
from npukit.llm.tasks.task import Learning, Task


class SFT(Task):
    """The mean loss of the tokens of answers."""

    name = "sft"
    summary = "supervised fine-tuning (sft)"
    verb = "sft"
    uses: ClassVar[frozenset[str]] = frozenset({"chat", "tokens"})
    streams = packs = models_tokens = True

    def joins(self, config: Config, can_pack: bool) -> bool:
        """Also rows that are not packed before, except with NEFTune, whose noise depends on the length of a row."""
        return config.data.packing or (can_pack and not config.tuning.noise)

    def check_layout(self, layout: Layout, table: str) -> None:
        if layout.format == "text":
            raise NpukitError(f"{table} is plain text without questions and answers: use task: pt for it.")

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        return lay_out(row, layout)

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        from npukit.llm.models.forward import return_loss
        from npukit.llm.tasks.losses.tokens import weighting

        return_loss(model, config.model.balance_experts, weighting(config.tuning))

    def after_tuning(self, model: Any, tuned: Any, config: Config, device: Any) -> None:
        from npukit.llm.tasks.losses.tokens import stay_near_the_first

        if config.tuning.loss == "asft":
            stay_near_the_first(model, tuned, config, device)

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        from npukit.llm.data.collate import tokens, weight
        from npukit.llm.tasks.losses.tokens import loss_of

        loss = partial(loss_of, longest=config.data.pack_length or config.data.cutoff)
        return Learning(train, validation, collate, loss, weight, partial(tokens, pad_id=collate.pad_id))

    def flops_per_token(self, model: Any) -> float | None:
        from npukit.llm.models.flops import flops_per_token

        return flops_per_token(model)


TASKS = (SFT(),)
