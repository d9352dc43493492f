"""Tiny models of three families, each in a folder with a tokenizer, whose weights are far from zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def make_model(tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """`make_model("gpt2", tie_word_embeddings=True)`: the folder of such a model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    def make(family: str, **options: Any) -> Path:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
        extra = {} if family == "gpt2" else {"intermediate_size": 48, "num_key_value_heads": 1}
        ends = {"eos_token_id": tiny_tokenizer.eos_token_id, "bos_token_id": None}
        config = AutoConfig.for_model(family, vocab_size=len(tiny_tokenizer), **sizes, **extra, **ends, **options)
        folder = tmp_path_factory.mktemp("models") / family
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            for weight in model.parameters():
                torch.nn.init.normal_(weight, std=0.2)
            model.save_pretrained(folder)
        tiny_tokenizer.save_pretrained(folder)
        return folder

    return make
