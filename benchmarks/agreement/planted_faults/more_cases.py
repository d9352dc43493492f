"""Faults of further kinds in twelve more families, and pairs of right runs, all written before any was compared."""

# ruff: noqa: E501
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from benchmarks.agreement.planted_faults import faults as f
from benchmarks.agreement.planted_faults.family_cases import channels_last, compiled, unused_random_numbers
from benchmarks.agreement.planted_faults.faults import Clean, Fault, Run
from torch import Tensor, nn
from torch.nn import functional

# What a wrong kernel does.


def tiles_swapped(x: Tensor) -> Tensor:
    first, second = x[:8].clone(), x[8:16].clone()
    x[:8], x[8:16] = second, first
    return x


# Mistakes in code


def router_in_bf16(run: Run) -> None:
    gate = run.model.model.layers[1].mlp.gate

    def forward(hidden: Tensor) -> Any:
        logits = functional.linear(hidden.reshape(-1, gate.hidden_dim).bfloat16(), gate.weight.bfloat16())
        values, indices = logits.softmax(-1).topk(gate.top_k, -1)
        return logits.float(), values.float(), indices

    gate.forward = forward


def without_sinks(run: Run) -> AbstractContextManager[Any]:
    from transformers.models.gpt_oss import modeling_gpt_oss
    from transformers.models.llama.modeling_llama import eager_attention_forward

    def attention(*arguments: Any, s_aux: Any = None, **keywords: Any) -> Any:
        return eager_attention_forward(*arguments, **keywords)

    return mock.patch.object(modeling_gpt_oss, "eager_attention_forward", attention)


def halves_for_pairs(run: Run) -> None:
    """Gate and up as two halves, where the checkpoint has them interleaved."""
    experts = run.model.model.layers[1].mlp.experts

    def gated(both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        gate, up = gate.clamp(max=experts.limit), up.clamp(-experts.limit, experts.limit)
        return (up + 1) * gate * torch.sigmoid(gate * experts.alpha)

    experts._apply_gate = gated


def no_norm_of_time_step(run: Run) -> None:
    run.model.model.layers[0].mamba.dt_layernorm.forward = lambda x: x


def auxiliary_loss(run: Run) -> None:
    run.model.config.output_router_logits = True


def sees_the_future(run: Run) -> AbstractContextManager[Any]:
    from transformers.models.falcon_mamba import modeling_falcon_mamba

    def centred(x: Tensor, weight: Tensor, bias: Any = None, activation: Any = None, **_: Any) -> Tensor:
        out = functional.conv1d(x, weight.unsqueeze(1), bias, padding=weight.shape[-1] // 2, groups=x.shape[1])
        return functional.silu(out[..., : x.shape[-1]])

    return mock.patch.object(modeling_falcon_mamba, "causal_conv1d_fn", centred)


def state_carried_over(run: Run) -> None:
    lstm = run.model.decoder.lstm
    forward = lstm.forward
    state = torch.full((2, 2, 24), 0.1)
    lstm.forward = lambda x, _=None: forward(x, (state, state))


def no_straight_through(run: Run) -> None:
    from transformers.models.dac.modeling_dac import DacVectorQuantize

    def forward(self: Any, hidden: Tensor) -> Any:
        latents = self.in_proj(hidden)
        quantized, codes = self.decode_latents(latents)
        commitment = functional.mse_loss(latents, quantized.detach())
        codebook = functional.mse_loss(quantized, latents.detach())
        return self.out_proj(quantized), commitment, codebook, codes, latents

    for module in run.model.modules():
        if isinstance(module, DacVectorQuantize):
            module.forward = forward.__get__(module)


def untied(run: Run) -> None:
    run.model.lm_head.weight = nn.Parameter(run.model.lm_head.weight.detach().clone())


def gradients_of_the_step_before(run: Run) -> None:
    run.model(**run.batch).loss.backward()


def bilinear(run: Run) -> AbstractContextManager[Any]:
    interpolate = functional.interpolate
    return mock.patch.object(
        functional, "interpolate", lambda *a, **k: interpolate(*a, **{**k, "mode": "bilinear"})
    )  # fmt: skip


def classes_dropped(run: Run) -> None:
    for module in run.model.modules():
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.5


def clipped_by_value(run: Run) -> AbstractContextManager[Any]:
    clip = nn.utils.clip_grad_value_
    return mock.patch.object(nn.utils, "clip_grad_norm_", lambda weights, norm: clip(weights, 1e-3))


# What two right runs may differ in


def decaying_fused(run: Run) -> None:
    run.optimizer = torch.optim.AdamW(run.optimizer.param_groups, fused=True)
    for group in run.optimizer.param_groups:
        group.update(foreach=None, fused=True)


FAULTS = [
    Fault("olmoe", "router in bf16", patch=router_in_bf16, expected=r"(dtype|missing): .*model\.layers\.1\.mlp\.gate"),
    Fault("olmoe", "loss divided by two", patch=f.run_value(scale=0.5), expected=r"argument: mul is called"),
    Fault("gptoss", "attention sinks left out", patch=without_sinks, expected=r"(cat|sub|max|amax|_softmax|matmul|bmm) in model\.layers\.0\.self_attn"),
    Fault("gptoss", "gate and up as halves", patch=halves_for_pairs, expected=r"clamp\w* in model\.layers\.1\.mlp\.experts"),
    Fault("switch", "another capacity of experts", patch=f.setting("encoder.block.1.layer.1.mlp.router", "expert_capacity", 2), expected=r"argument: le in encoder\.block\.1\.layer\.1\.mlp\.router"),
    Fault("jamba", "norm of the time step left out", patch=no_norm_of_time_step, expected=r"model\.layers\.0\.mamba\.dt_layernorm"),
    Fault("jamba", "auxiliary loss added", patch=auxiliary_loss, expected=r"missing: .*(add|mul)_?,? "),
    Fault("falconmamba", "convolution sees the future", patch=sees_the_future, expected=r"convolution in backbone\.layers\.0\.mixer"),
    Fault("falconmamba", "another beta2", patch=f.group(betas=(0.9, 0.95)), expected=r"argument: .*betas"),
    Fault("parakeet", "state of the batch before", patch=state_carried_over, expected=r"decoder\.lstm"),
    Fault("parakeet", "dropout between layers", patch=f.setting("decoder.lstm", "dropout", 0.2), expected=r"(bernoulli_?|dropout|native_dropout|div_?|mul) in decoder\.lstm"),
    Fault("mobilenet", "another momentum of statistics", patch=f.setting("mobilenet_v2.conv_stem.conv_3x3.normalization", "momentum", 0.1), expected=r"argument: .*batch_norm in mobilenet_v2\.conv_stem\.conv_3x3\.normalization"),
    Fault("mobilenet", "ReLU for ReLU6", patch=f.setting("mobilenet_v2.layer.2.conv_3x3", "activation", nn.ReLU()), expected=r"(relu|hardtanh|clamp)\w* in mobilenet_v2\.layer\.2\.conv_3x3"),
    Fault("dac", "no straight-through gradient", patch=no_straight_through, expected=r"(gradient|missing): .*quantizer"),
    Fault("marian", "embeddings not tied", patch=untied, expected=r"lm_head|shared|embed_tokens"),
    Fault("marian", "gradients of the step before", patch=gradients_of_the_step_before, expected=r"gradients of|add_? .*\(backward\)"),
    Fault("conditioned", "bilinear for nearest", patch=bilinear, expected=r"upsample_(nearest|bilinear)2d in unet\.up_blocks\.0"),
    Fault("dit", "classes dropped at random", patch=classes_dropped, expected=r"(rand|where|lt) in dit\.transformer_blocks\.[01]\.norm1\.emb\.class_embedder"),
    Fault("dit", "two tiles of a product swapped", "addmm", 6, tiles_swapped),
    Fault("patchtst", "clipped by value", patch=clipped_by_value, expected=r"clamp|clip|gradients of|_foreach_(norm|mul|clamp)"),
]  # fmt: skip
CLEAN = [
    Clean("conditioned", "channels last", channels_last),
    Clean("jamba", "activation checkpointing", f.checkpointing),
    Clean("parakeet", "two threads", f.threads),
    Clean("falconmamba", "compiled", compiled),
    Clean("marian", "SDPA for eager attention", f.sdpa),
    Clean("dit", "unused random numbers", unused_random_numbers("dit.transformer_blocks.0")),
    Clean("olmoe", "batch in two halves", f.run_value(parts=2)),
    Clean("switch", "fused optimizer", decaying_fused),
]
