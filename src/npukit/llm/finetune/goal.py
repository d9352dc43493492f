"""What a run learns from, and the loss that is to become small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from npukit.llm import families
from npukit.llm.config.options import HEADS, PREFERENCES, Config
from npukit.llm.data.collate import Collator, weight
from npukit.llm.data.prepare import Prepared
from npukit.llm.data.rows import Chosen
from npukit.llm.finetune.heads import TextCollator, TextRows, loss_of_head, texts_in
from npukit.llm.finetune.preference import (
    WITHOUT_REFERENCE,
    PairCollator,
    Pairs,
    marked_loss,
    pair_loss,
    pairs_in,
    reward_loss,
)
from npukit.llm.models.attention import for_attention


@dataclass(frozen=True)
class Goal:
    """What is trained on, and what is to become small."""

    train: Any
    validation: Any
    loss: Callable[[nn.Module, dict[str, Any]], Tensor]
    weight: Callable[[dict[str, Any]], int]
    collate: Callable[[Any], dict[str, Any]]
    needs_reference: bool = False


def joins_rows(config: Config, shape: Any) -> bool:
    """Whether the rows of a batch lie one behind the other instead of being padded, packed beforehand or not."""
    if config.data.packing or config.task not in ("sft", "pt"):
        return config.data.packing
    return families.of(shape).can_pack and not config.tuning.noise  # whose size depends on the length of a row


def make_goal(config: Config, prepared: Prepared, pad_id: int, joined: bool) -> Goal:
    """What the task of a configuration asks for."""
    length = config.data.pack_length or config.data.cutoff
    collate = Collator(joined, pad_id, length if config.data.packing else None, weighs=bool(config.data.weigh))
    if config.task in HEADS:
        return head_goal(config, prepared, collate)
    if config.task in PREFERENCES:  # whose rows are not packed beforehand
        return preference_goal(config, prepared, replace(collate, pack_length=None))
    return Goal(prepared.train, prepared.validation, partial(loss_of, longest=length), weight, collate)


def preference_goal(config: Config, prepared: Prepared, collate: Collator) -> Goal:
    """Pairs, or marked answers, and the loss that the options choose."""
    options, is_kto = config.preference, config.task == "kto"
    found = (prepared.train, prepared.validation)
    train, validation = (Pairs(rows, is_kto) if isinstance(rows, Chosen) else None for rows in found)
    loss: Callable[[nn.Module, dict[str, Any]], Tensor] = reward_loss
    if config.task != "rm":
        loss = partial(marked_loss if is_kto else pair_loss, options=options)
    needs = is_kto or (config.task == "dpo" and options.loss not in WITHOUT_REFERENCE)
    return Goal(train, validation, loss, pairs_in, PairCollator(collate, config.data.cutoff), needs)


def head_goal(config: Config, prepared: Prepared, collate: Collator) -> Goal:
    """Texts with labels, and the loss that the options choose."""
    found = (prepared.train, prepared.validation)
    train, validation = (TextRows(rows, config) if isinstance(rows, Chosen) else None for rows in found)
    return Goal(train, validation, loss_of_head(config), texts_in, TextCollator(collate, config.head, config.task))


def loss_of(model: nn.Module, batch: dict[str, Any], longest: int) -> Tensor:
    """The mean loss of a batch; `longest` is the most tokens that a row of any batch can have."""
    given = {**batch, "max_length": longest} if "cu_seqlens" in batch else batch
    loss: Tensor = model(**for_attention(given))
    return loss
