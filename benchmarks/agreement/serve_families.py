"""Does npukit's engine answer as transformers' `generate` does, for every family that transformers has?

    python -m benchmarks serve_families [KIND ...]

Each causal language model of the installed transformers is made with a tiny configuration and random weights, and three
prompts are answered greedily. A family whose tiny configuration does not exist, or which transformers itself cannot
answer with, is left out and counted. Fails on a difference. No network, about four minutes on one core.
"""

from __future__ import annotations

import collections
import random
import sys
import warnings
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, logging
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams

WORDS, ANSWER, LARGEST = 300, 12, 30_000_000
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "head_dim", "v_head_dim", "index_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "num_key_value_heads", "index_n_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "bos_token_id"), 1),
    "vocab_size": WORDS,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
# Layers that a usual configuration has, and none of so few layers.
CONVOLUTIONS = {"layer_types": ["conv", "full_attention"] * 2}
LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
LAYERS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": CONVOLUTIONS,
    "lfm2_moe": CONVOLUTIONS,
    "kimi_linear": LINEAR,
    "bailing_hybrid": LINEAR,
    "mamba2": {"num_heads": 8, "head_dim": 16},
}
# Models that look in both directions, of which transformers makes a causal one all the same.
BOTH_WAYS = {
    *("bert", "big_bird", "camembert", "cpmant", "data2vec-text", "electra", "ernie", "megatron-bert", "roberta"),
    *("rembert", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}


def tiny(kind: str) -> Any:
    """A model of this kind; None where it would not be small."""
    usual = AutoConfig.for_model(kind)
    sizes = {name: value for name, value in SIZES.items() if hasattr(usual, name)}
    if getattr(usual, "num_key_value_heads", 0) == getattr(usual, "num_attention_heads", None):
        sizes["num_key_value_heads"] = SIZES["num_attention_heads"]
    if "qk_rope_head_dim" in sizes and "head_dim" in sizes:  # with latent attention it is the width of what is rotated
        sizes["head_dim"] = sizes["qk_rope_head_dim"]
    config = AutoConfig.for_model(kind, **sizes | LAYERS.get(kind, {}))
    with torch.device("meta"):
        if sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters()) > LARGEST:
            return None
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)  # so that the likeliest token is clear
    return model


def generated(model: Any, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": ANSWER, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return answer[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def outcome(kind: str) -> str:
    """One word for a family, and why where it was left out."""
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(3, WORDS) for _ in range(length)) for length in (5, 12, 19)]
    try:
        model = tiny(kind)
        if model is None:
            return "left out: not small"
        expected = [generated(model, prompt) for prompt in prompts]
    except Exception as error:  # transformers' own code, with a configuration that nobody has
        return f"left out: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"
    engine = Engine(model, EngineOptions(max_model_len=128, max_num_seqs=4, num_blocks=64, max_num_batched_tokens=16))
    requests = [Request(prompt, SamplingParams(temperature=0, max_tokens=ANSWER)) for prompt in prompts]
    if [answer.ids for answer in engine.generate(requests)] != expected:
        return "DIFFERENT"
    return "paged" if engine.is_paged else "own cache"


def main(kinds: tuple[str, ...]) -> None:
    wanted = kinds or sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - BOTH_WAYS)
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    for kind in wanted:
        result = outcome(kind)
        counts[result.partition(":")[0]] += 1
        print(f"{kind:<28} {result}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    sys.exit("DIFFERENT" in counts)
