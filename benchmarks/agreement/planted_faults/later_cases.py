"""Faults of further kinds in the later families, and pairs of right runs, all written before any was compared."""

# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from benchmarks.agreement.planted_faults import faults as f
from benchmarks.agreement.planted_faults.family_cases import compiled, unused_random_numbers, without_keyword
from benchmarks.agreement.planted_faults.faults import Clean, Fault, Run
from benchmarks.agreement.planted_faults.more_cases import decaying_fused
from torch import Tensor, nn
from torch.nn import functional

# Mistakes in code


def momentum(dtype: torch.dtype) -> Callable[[Run], None]:
    """SGD in the middle of a training: what it remembers of the steps before has a type."""

    def patch(run: Run) -> None:
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.05, momentum=0.9, foreach=False)
        for weight in run.model.parameters():
            run.optimizer.state[weight]["momentum_buffer"] = torch.full_like(weight, 1e-3, dtype=dtype)

    return patch


def chosen_after_softmax(run: Run) -> None:
    """The weights of the chosen experts are their share among all, not among the chosen."""
    router = run.model.model.layers[1].block_sparse_moe.router

    def forward(hidden: Tensor) -> Any:
        logits = functional.linear(hidden, router.weight).float()
        weights, index = logits.softmax(-1).topk(router.top_k, -1)
        return logits, weights, index

    router.forward = forward


def gate_after_norm(run: Run) -> None:
    norm = run.model.model.layers[0].mamba.norm

    def forward(hidden: Tensor, gate: Tensor) -> Any:
        hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
        return norm.weight * hidden * functional.silu(gate)

    norm.forward = forward


def no_token_shift(run: Run) -> None:
    run.model.rwkv.blocks[1].attention.time_shift.forward = lambda x: x


def positions_of_one_document(run: Run) -> None:
    run.batch["position_ids"] = torch.arange(10).expand(2, 10)


def positions_of_two_documents(run: Run) -> None:
    run.batch["position_ids"] = torch.arange(5).repeat(2).expand(2, 10)


def heads_in_turns(run: Run) -> AbstractContextManager[Any]:
    """The heads of keys and values repeated as 0, 1, 0, 1 instead of 0, 0, 1, 1."""
    from transformers.models.starcoder2 import modeling_starcoder2

    return mock.patch.object(modeling_starcoder2, "repeat_kv", lambda states, times: states.repeat(1, times, 1, 1))


def rotary_pairs(run: Run) -> AbstractContextManager[Any]:
    """Neighbours are rotated with each other, where the weights are for halves."""
    from transformers.models.gpt_neox import modeling_gpt_neox

    def rotate(x: Tensor) -> Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    return mock.patch.object(modeling_gpt_neox, "rotate_half", rotate)


def angles_in_bf16(run: Run) -> None:
    rotary = run.model.model.rotary_emb
    forward = type(rotary).forward

    def rounded(x: Tensor, position_ids: Tensor) -> Any:
        return tuple(part.to(x.dtype) for part in forward(rotary, x.bfloat16(), position_ids))

    rotary.forward = rounded


def unscaled(first: bool) -> Callable[[Run], Any]:
    """Gradients are divided by the scale of the loss before they are clipped, or after."""

    def patch(run: Run) -> Any:
        run.scale = 1024.0
        clip = nn.utils.clip_grad_norm_

        def divide(weights: Any, norm: float) -> None:
            for weight in weights:
                if weight.grad is not None:
                    weight.grad.div_(run.scale)

        def both(weights: Any, norm: float) -> None:
            weights = list(weights)
            for step in (divide, clip) if first else (clip, divide):
                step(weights, norm)

        return mock.patch.object(nn.utils, "clip_grad_norm_", both)

    return patch


def corners_aligned(run: Run) -> AbstractContextManager[Any]:
    interpolate = functional.interpolate
    return mock.patch.object(
        functional, "interpolate", lambda *a, **k: interpolate(*a, **{**k, "align_corners": True})
    )  # fmt: skip


def model_value(**values: Any) -> Callable[[Run], None]:
    return lambda run: run.model.__dict__.update(values)


def config_value(**values: Any) -> Callable[[Run], None]:
    return lambda run: run.model.config.__dict__.update(values)


def gate_and_up_swapped(run: Run) -> None:
    mlp = run.model.model.layers[1].mlp
    mlp.gate_proj.weight, mlp.up_proj.weight = mlp.up_proj.weight, mlp.gate_proj.weight


def labels_not_shifted(run: Run) -> None:
    run.model._shift_right = lambda labels: labels


def softmax_over_tokens(run: Run) -> AbstractContextManager[Any]:
    from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe

    softmax = functional.softmax

    def wrong(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
        return softmax(x, 0 if x.dim() == 2 else dim, dtype=dtype)

    return mock.patch.object(modeling_ernie4_5_moe.F, "softmax", wrong)


def shared_expert_not_gated(run: Run) -> None:
    run.model.model.layers[1].mlp.shared_expert_gate.forward = lambda x: torch.full((len(x), 1), 30.0)


def weight_without_one(run: Run) -> None:
    norm = run.model.model.layers[1].input_layernorm
    norm.forward = lambda x: functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def softmax_in_half(run: Run) -> AbstractContextManager[Any]:
    from transformers.models.dinov2 import modeling_dinov2

    softmax = functional.softmax

    def half(x: Tensor, dim: int, **_: Any) -> Tensor:
        return softmax(x.half(), dim).to(x.dtype)

    return mock.patch.object(modeling_dinov2.nn.functional, "softmax", half)


def no_power_iteration(run: Run) -> None:
    run.model.second.parametrizations.eval()


# What two right runs may differ in


def clipped_one_by_one(run: Run) -> AbstractContextManager[Any]:
    clip = nn.utils.clip_grad_norm_
    return mock.patch.object(nn.utils, "clip_grad_norm_", lambda weights, norm: clip(weights, norm, foreach=False))


def experts_in_one_product(run: Run) -> None:
    run.model.set_experts_implementation("batched_mm")


def experts_one_by_one(run: Run) -> None:
    run.model.set_experts_implementation("eager")


def parameters_reversed(run: Run) -> None:
    for group in run.optimizer.param_groups:
        group["params"].reverse()


def images_channels_last(run: Run) -> None:
    run.model.to(memory_format=torch.channels_last)
    run.batch["pixel_values"] = run.batch["pixel_values"].contiguous(memory_format=torch.channels_last)


FAULTS = [
    Fault("granitemoe", "experts chosen after the softmax", patch=chosen_after_softmax, expected=r"(_softmax|topk) in model\.layers\.1\.block_sparse_moe\.router"),
    Fault("bamba", "gate after the norm", patch=gate_after_norm, expected=r"(silu|mul|pow|mean) in model\.layers\.0\.mamba\.norm"),
    Fault("rwkv", "token shift left out", patch=no_token_shift, expected=r"rwkv\.blocks\.1\.attention"),
    Fault("recurrentgemma", "positions of packed rows go on", left=positions_of_two_documents, patch=positions_of_one_document, expected=r"source: .*(rotary_emb|position_ids|rg_lru|in model )"),
    Fault("opt", "norm after instead of before", patch=f.setting("model.decoder.layers.1", "do_layer_norm_before", False), expected=r"model\.decoder\.layers\.1\.self_attn"),
    Fault("starcoder2", "heads of keys in another order", patch=heads_in_turns, expected=r"model\.layers\.0\.self_attn"),
    Fault("starcoder2", "window off by one", patch=config_value(sliding_window=5), expected=r"argument: (sub|gt|ge|le|lt|add)\w* in model "),
    Fault("gptneox", "rotary pairs for halves", patch=rotary_pairs, expected=r"(neg|cat|stack|mul).* in gpt_neox\.layers\.0\.attention"),
    Fault("gptneox", "another padding token", patch=config_value(pad_token_id=1), expected=r"argument: ne "),
    Fault("cohere", "angles in bf16", patch=angles_in_bf16, expected=r"(missing|dtype|operator): .*model\.rotary_emb"),
    Fault("albert", "one pass fewer through shared layers", patch=config_value(num_hidden_layers=2), expected=r"albert_layer_groups|albert\.encoder"),
    Fault("hubert", "clipped before the scale is taken out", left=unscaled(True), patch=unscaled(False), expected=r"(div_|_foreach_norm|linalg_vector_norm|_foreach_mul_|gradients of)"),
    Fault("segformer", "corners aligned", patch=corners_aligned, expected=r"argument: upsample_bilinear2d"),
    Fault("efficientnet", "momentum in bf16", left=momentum(torch.float32), patch=momentum(torch.bfloat16), expected=r"(dtype|source|operator): .*(mul_|add_|SGD)"),
    Fault("sd3", "noise for velocity", patch=model_value(target="noise"), expected=r"missing: .*sub|mse_loss"),
    Fault("tagger", "padding read by the LSTM", patch=model_value(packs=False), expected=r"_pack_padded_sequence|rnn|lstm"),
]  # fmt: skip
CLEAN = [
    Clean("granitemoe", "experts in one product", experts_in_one_product),
    Clean("bamba", "compiled", compiled),
    Clean("rwkv", "fused optimizer", decaying_fused),
    Clean("recurrentgemma", "activation checkpointing", f.checkpointing),
    Clean("starcoder2", "SDPA for eager attention", f.sdpa),
    Clean("tagger", "another memory layout", f.contiguous_batch),
    Clean("efficientnet", "channels last", images_channels_last),
    Clean("opt", "parameters in another order", parameters_reversed),
]
LAST = [
    Fault("qwen2moe", "shared expert not gated", patch=shared_expert_not_gated, expected=r"model\.layers\.1\.mlp(\.shared_expert_gate)?\b"),
    Fault("nemotron", "norm's weight without one", patch=weight_without_one, expected=r"(add|native_layer_norm) in model\.layers\.1\.input_layernorm"),
    Fault("pegasus", "embeddings not scaled", patch=f.setting("model.encoder", "embed_scale", 1.0), expected=r"argument: mul in model\.encoder"),
    Fault("dinov2", "softmax in half", patch=softmax_in_half, expected=r"(dtype|missing): .*_softmax.* in dinov2\.(encoder\.)?layer\.0\.attention"),
    Fault("graph", "messages averaged", patch=model_value(mean=True), expected=r"(div|clamp|bincount)"),
    Fault("critic", "no power iteration", patch=no_power_iteration, expected=r"second\.parametrizations"),
    Fault("sequence", "loss averaged over the padding", patch=model_value(masked=False), expected=r"(div|mean|sum)"),
    Fault("falcon", "eps of the optimizer", patch=f.group(eps=1e-4), expected=r"argument: .*eps"),
]  # fmt: skip
LAST_CLEAN = [
    Clean("qwen2moe", "experts one by one", experts_one_by_one),
    Clean("pegasus", "clipped parameter by parameter", clipped_one_by_one),
    Clean("dinov2", "compiled", compiled),
    Clean("falcon", "SDPA for eager attention", f.sdpa),
]
UNREAD = [
    Fault("phi", "a layer without causal mask", patch=without_keyword("model.layers.1.self_attn", "attention_mask"), expected=r"model\.layers\.1\.self_attn"),
    Fault("stablelm", "gate and up swapped", patch=gate_and_up_swapped, expected=r"source: .*model\.layers\.1\.mlp"),
    Fault("umt5", "labels not shifted", patch=labels_not_shifted, expected=r"(copy_|fill_|masked_fill_|new_zeros|zeros|source: .*embedding|embedding in (decoder|shared))"),
    Fault("erniemoe", "softmax over the tokens", patch=softmax_over_tokens, expected=r"argument: _softmax in model\.layers\.1\.mlp\.gate"),
    Fault("forecaster", "targets broadcast", patch=model_value(squeezes=False), expected=r"(shape|argument|layout|missing|operator): .*sub"),
    Fault("opt", "rate of one group", patch=lambda run: run.optimizer.param_groups[1].update(lr=1e-4), expected=r"argument: .*lr"),
]  # fmt: skip
UNREAD_CLEAN = [
    Clean("moonshine", "SDPA for eager attention", f.sdpa),
    Clean("longformer", "unused random numbers", unused_random_numbers("longformer.encoder.layer.0")),
]
