"""Twelve pairs of right runs in families that no other set uses, tiny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.agreement.planted_faults import faults as f
from benchmarks.agreement.planted_faults import fresh_cases as fresh
from benchmarks.agreement.planted_faults.faults import Clean, Run
from benchmarks.agreement.planted_faults.later_cases import images_channels_last, parameters_reversed
from torch import Tensor, nn

_WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT: dict[str, Any] = {"vocab_size": 96, "attn_implementation": "eager", "pad_token_id": 0, **_WIDTH}
_DECODER: dict[str, Any] = {**_TEXT, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED: dict[str, Any] = {**_DECODER, "num_key_value_heads": 2}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SIDE = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
_BOTH: dict[str, Any] = {
    "vocab_size": 96, "d_model": 32, "dropout": 0.0, "attn_implementation": "eager", "pad_token_id": 0,
    **{f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in _SIDE.items()},
}  # fmt: skip


def _mobilevit(t: Any) -> Any:
    sizes = {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32], "num_attention_heads": 2}
    config = t.MobileViTConfig(**sizes, image_size=32, patch_size=2, num_labels=4, hidden_dropout_prob=0.0)
    return t.MobileViTForImageClassification(config)


def _levit(t: Any) -> Any:
    sizes = {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "key_dim": [8, 8, 8], "depths": [1, 1, 1]}
    return t.LevitForImageClassification(t.LevitConfig(**sizes, image_size=32, num_labels=4, drop_path_rate=0))


TRANSFORMERS: dict[str, Callable[[Any], Any]] = {
    "electra": lambda t: t.ElectraForMaskedLM(t.ElectraConfig(**_TEXT, **_NO_DROPOUT, embedding_size=32)),
    "mistral": lambda t: t.MistralForCausalLM(t.MistralConfig(**_GROUPED, sliding_window=4)),
    "gemma": lambda t: t.GemmaForCausalLM(t.GemmaConfig(**_GROUPED, head_dim=8)),
    "mobilevit": _mobilevit,
    "blenderbot": lambda t: t.BlenderbotForConditionalGeneration(t.BlenderbotConfig(**_BOTH)),
    "granite": lambda t: t.GraniteForCausalLM(t.GraniteConfig(**_GROUPED)),
    "mbart": lambda t: t.MBartForConditionalGeneration(t.MBartConfig(**_BOTH)),
    "rembert": lambda t: t.RemBertForMaskedLM(
        t.RemBertConfig(**_DECODER, **_NO_DROPOUT, input_embedding_size=32, output_embedding_size=32)
    ),
    "levit": _levit,
    "exaone4": lambda t: t.Exaone4ForCausalLM(t.Exaone4Config(**_GROUPED, sliding_window=4)),
    "persimmon": lambda t: t.PersimmonForCausalLM(t.PersimmonConfig(**_DECODER)),
    "bigcode": lambda t: t.GPTBigCodeForCausalLM(
        t.GPTBigCodeConfig(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_implementation="eager")
    ),
}


def batch(kind: str) -> dict[str, Tensor]:
    """What a family is trained on."""
    if kind in ("mobilevit", "levit"):
        return {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([1, 3, 0, 2])}
    tokens = torch.randint(3, 96, (2, 12))
    return {"input_ids": tokens, "labels": tokens.clone()}


# What two right runs may differ in


def unused_random_numbers(run: Run) -> None:
    """Each linear layer draws numbers that nobody reads."""

    def draw(*_: Any) -> None:
        torch.rand(3)

    for module in run.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(draw)


def compiled_blocks(run: Run) -> None:
    for layer in run.model.model.layers:
        layer.compile(backend="aot_eager")


def in_two_halves(run: Run) -> None:
    run.parts = 2


def fused(run: Run) -> None:
    run.optimizer = torch.optim.AdamW(run.optimizer.param_groups, lr=1e-5, foreach=False, fused=True)


CLEAN = [
    Clean("electra", "unused random numbers", unused_random_numbers),
    Clean("mistral", "SDPA with a window", f.sdpa),
    Clean("gemma", "threads", f.threads),
    Clean("mobilevit", "channels last", images_channels_last),
    Clean("blenderbot", "checkpointing", f.checkpointing),
    Clean("granite", "compiled blocks", compiled_blocks, "modules"),
    Clean("mbart", "batch in two halves", in_two_halves),
    Clean("rembert", "fused AdamW", fused),
    Clean("levit", "without oneDNN", fresh.without_onednn),
    Clean("exaone4", "SDPA row by row", fresh.sdpa_row_by_row),
    Clean("persimmon", "reentrant checkpointing", fresh.reentrant),
    Clean("bigcode", "parameters reversed", parameters_reversed),
]
