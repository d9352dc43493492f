"""Trains a configuration without its weights and data, with their shapes only."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from npukit.facts.models import known_model
from npukit.launch.devices import torch_device
from npukit.llm import families
from npukit.llm.config.options import Config
from npukit.llm.data.collate import Collator, tokens, weight
from npukit.llm.finetune import rank
from npukit.llm.finetune.train import adapt, weights_dtype, with_data
from npukit.llm.models.attention import NAME as PACKED_ATTENTION
from npukit.llm.models.attention import register
from npukit.llm.models.experts import use_grouped_experts
from npukit.llm.models.forward import share_rows
from npukit.llm.models.loading import attention_of, auto_class
from npukit.llm.tasks import task as tasks
from npukit.llm.tasks.losses.tokens import loss_of
from npukit.performance.plan.memory import row_length
from npukit.performance.plan.walked import ACCUMULATION
from npukit.train import Trainer

ROWS = 4096


def train_shapes(output: Path) -> None:
    """Train as `npukit train` does; the observer ends it after its steps."""
    config = rank.taken_over()
    device = torch_device()
    shape = model_config(config)
    if not families.of(shape).can_pack:
        config = with_data(config, packing=False)
    register()
    joined = tasks.of(config).joins(config, families.of(shape).can_pack)
    attention = PACKED_ATTENTION if joined or config.training.sequence_parallel > 1 else None
    with torch.device("meta"):
        model = auto_class(shape).from_config(
            shape, dtype=weights_dtype(config, device), attn_implementation=attention_of(shape, attention)
        )
        model = adapt(model, config, device)
    # Complete on the card from the start, or on the host until it is sharded.
    model.to_empty(device=device if config.training.parallel == "ddp" else "cpu")
    use_grouped_experts(model)
    options = config.training.model_copy(
        update={
            "compile": False,
            "output": output,
            "accumulation": min(config.training.accumulation, ACCUMULATION),
            "workers": 0,
            "max_steps": 8,
            "save_every": None,
            "eval_every": None,
            "early_stopping": None,
            "plot": False,
            "loggers": (),
            "resume": "never",
            "profile": None,
        }
    )
    length = row_length(config)
    trainer = Trainer(
        model,
        options,
        [_row(length)] * ROWS,
        loss=partial(loss_of, longest=length),
        weight=weight,
        size=partial(tokens, pad_id=0),
        collate=Collator(joined, 0, length if config.data.packing else None),
        item="tokens",
    )
    if trainer.parallel.sequence:
        share_rows(model, trainer.parallel.sequence)
    trainer.train()


def model_config(config: Config) -> Any:
    """transformers' configuration of the model: from its folder, or of a well-known name."""
    known = None if Path(config.model.path).expanduser().exists() else known_model(config.model.path)
    if known:
        return AutoConfig.for_model(**known)
    from npukit.llm.models.folder import find_model
    from npukit.llm.models.loading import load_config

    options = config.model
    return load_config(options, str(find_model(options.path, options.revision, options.hub, weights=False)))


def _row(length: int) -> dict[str, Any]:
    ids = np.arange(length) % 100 + 1
    return {"input_ids": ids, "labels": ids, "lengths": np.array([length])}
