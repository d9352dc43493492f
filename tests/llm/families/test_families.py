"""Each family's file says what transformers' code of that family does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from npukit.llm import families
from npukit.llm.chat.templates import names

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}
VARIANTS = [
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 32}),
    ("qwen3", {"head_dim": 32, "attention_bias": True}),
    ("mistral", {}),
    ("gemma", {"head_dim": 32}),
    ("glm", {"head_dim": 16, "attention_bias": True}),
    ("glm4", {"head_dim": 16}),
    ("phi3", {}),
    ("olmo2", {}),
    ("seed_oss", {"head_dim": 16, "attention_bias": True}),
    ("ernie4_5", {"head_dim": 16}),
    ("smollm3", {}),
    ("gpt2", GPT2),
]
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
WITH_EXPERTS = [
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("qwen2_moe", EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 40}),
    ("qwen3_moe", EXPERTS | {"num_experts": 4, "head_dim": 32}),
]


@pytest.mark.parametrize(("kind", "shape"), VARIANTS + WITH_EXPERTS)
def test_shapes_are_those_of_transformers(kind: str, shape: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **(shape if kind == "gpt2" else SMALL | shape))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = families.of(config).shapes
    assert shapes is not None
    assert shapes(config.to_dict()) == {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def test_every_family_with_plain_attention_is_among_them() -> None:
    plain = {name for name, family in families.known().items() if family.can_pack}
    seeing = families.visions().keys()  # which tests/llm/images has
    assert plain - seeing == {kind for kind, _ in VARIANTS + WITH_EXPERTS}


def test_a_model_type_without_a_file_is_unknown() -> None:
    unknown = families.of({"model_type": "unheard_of"})
    assert (unknown.attention, unknown.plain_logits, unknown.shapes) == ("unknown", False, None)
    assert families.of({"model_type": "decoder"}).attention == "unknown", "decoder.py holds no family"


def test_a_multimodal_model_has_the_family_of_its_language_model() -> None:
    inside = {"model_type": "llava", "text_config": {"model_type": "qwen2", "hidden_size": 64}}
    assert families.of(inside) is families.of({"model_type": "qwen2"})


def test_windows_count_only_where_they_are_used() -> None:
    qwen2, mistral = families.known()["qwen2"], families.known()["mistral"]
    assert qwen2.window({"sliding_window": 4096, "use_sliding_window": False}) is None
    assert qwen2.window({"sliding_window": 4096, "use_sliding_window": True}) == 4096
    assert mistral.window({"sliding_window": 4096}) == 4096 and mistral.window({}) is None


def test_names_of_templates_lead_to_templates() -> None:
    assert {ours for family in families.known().values() for ours in family.templates.values()} <= set(names())


def test_families_do_without_torch() -> None:
    code = "import sys; from npukit.llm import families; families.known(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
