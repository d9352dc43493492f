"""Faults of further kinds in further families, and pairs of right runs: READ was used for mending, UNREAD was not."""

# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from benchmarks.agreement.planted_faults import faults as f
from benchmarks.agreement.planted_faults.faults import Clean, Fault, Patch, Run
from torch import Tensor, nn
from torch.nn import functional

# What a wrong kernel does.


def tail_unwritten(x: Tensor) -> Tensor:
    """The end that fills no whole block of 32 bytes."""
    x.view(-1)[-7:] = 0
    return x


def small_values_flushed(x: Tensor) -> Tensor:
    return x * (x.abs() > x.abs().median() / 4)


# Mistakes in code


def wrapped(path: str, change: Callable[[Any], Any]) -> Patch:
    """What a module returns goes through a function first."""

    def patch(run: Run) -> None:
        module = run.model.get_submodule(path)
        forward = module.forward
        module.forward = lambda *arguments, **keywords: change(forward(*arguments, **keywords))

    return patch


def without_keyword(path: str, name: str) -> Patch:
    def patch(run: Run) -> None:
        module = run.model.get_submodule(path)
        forward = module.forward
        module.forward = lambda *arguments, **keywords: forward(*arguments, **{**keywords, name: None})

    return patch


def experts_swapped(path: str) -> Patch:
    """As a checkpoint is loaded whose experts are numbered otherwise."""

    def patch(run: Run) -> None:
        experts = run.model.get_submodule(path)
        for weight in experts.parameters():
            weight.data = weight.data[[1, 0, *range(2, len(weight))]].contiguous()

    return patch


def gates_reordered(path: str) -> Patch:
    """Input, forget, output, cell instead of input, forget, cell, output, as another framework has them."""

    def patch(run: Run) -> None:
        for weight in run.model.get_submodule(path).parameters():
            i, forget, g, o = weight.data.chunk(4)
            weight.data.copy_(torch.cat([i, forget, o, g]))

    return patch


def decay_of_norms(run: Run) -> None:
    run.optimizer.param_groups[1]["weight_decay"] = 0.01


def relu_for_softplus(run: Run) -> AbstractContextManager[Any]:
    return mock.patch.object(functional, "softplus", functional.relu)


def stochastic_depth(run: Run) -> None:
    from transformers.models.convnext.modeling_convnext import ConvNextDropPath

    run.model.convnext.encoder.stages[1].layers[1].drop_path = ConvNextDropPath(0.2)


def norm_sums_in_bf16(run: Run) -> None:
    norm = run.model.model.layers[1].input_layernorm
    norm.forward = lambda x: norm._norm(x) * (1.0 + norm.weight)


def in_bf16(run: Run) -> None:
    run.model.bfloat16()
    run.batch = {name: value.bfloat16() if value.is_floating_point() else value for name, value in run.batch.items()}


def autocast(run: Run) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def no_shared_experts(run: Run) -> None:
    run.model.model.layers[1].mlp.shared_experts.forward = torch.zeros_like


def trained_positions(run: Run) -> None:
    positions = run.model.model.encoder.embed_positions.weight.requires_grad_(True)
    run.optimizer.param_groups[0]["params"].append(positions) if not _has(run, positions) else None


def _has(run: Run, weight: Tensor) -> bool:
    return any(weight is other for group in run.optimizer.param_groups for other in group["params"])


def transposed_index(run: Run) -> None:
    for module in run.model.modules():
        if hasattr(module, "relative_position_index"):
            index = module.relative_position_index
            side = int(index.numel() ** 0.5)
            module.relative_position_index = index.view(side, side).t().reshape(index.shape)
            return


def scaled_gradient(run: Run) -> None:
    def hook(module: nn.Module, given: Any, output: Tensor) -> None:
        output.register_hook(lambda gradient: gradient * 0.1)  # type: ignore[no-untyped-call]

    run.model.wav2vec2.feature_extractor.register_forward_hook(hook)


def term_lost(run: Run) -> None:
    run.model.deberta.encoder.layer[1].attention.self.pos_att_type = ["c2p"]


def slopes_reversed(run: Run) -> AbstractContextManager[Any]:
    from transformers.models.bloom import modeling_bloom

    slopes = modeling_bloom._get_alibi_slopes
    return mock.patch.object(modeling_bloom, "_get_alibi_slopes", lambda *arguments: slopes(*arguments).flip(0))


def clamped_temperature(run: Run) -> None:
    clip = run.model.clip
    clip.register_forward_pre_hook(lambda *_: clip.logit_scale.data.clamp_(max=2.0) and None)


def coupled_decay(run: Run) -> None:
    run.optimizer = torch.optim.Adam(run.optimizer.param_groups, lr=1e-5, foreach=False)


# What two right runs may differ in


def unused_random_numbers(path: str) -> Patch:
    """Drawn without a seed, and then not used."""
    return wrapped(path, lambda output: (torch.rand(3, generator=_unseeded()), output)[1])


def _unseeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


def compiled(run: Run) -> None:
    run.model = torch.compile(run.model, backend="aot_eager")


def channels_last(run: Run) -> None:
    run.model.to(memory_format=torch.channels_last)
    run.batch["pixels"] = run.batch["pixels"].contiguous(memory_format=torch.channels_last)


READ = [
    Fault("qwen3moe", "routing weights not normalised", patch=f.setting("model.layers.1.mlp.gate", "norm_topk_prob", False), expected=r"(sum|div_?) in model\.layers\.1\.mlp\.gate"),
    Fault("qwen3moe", "two experts swapped", patch=experts_swapped("model.layers.1.mlp.experts"), expected=r"source: .*model\.layers\.1\.mlp\.experts"),
    Fault("qwen3moe", "norms decay too, lr 1e-5", patch=decay_of_norms, expected=r"argument: .*weight_decay"),
    Fault("encodec", "gates in another order", patch=gates_reordered("encoder.layers.7.lstm"), expected=r"source: .*encoder\.layers\.7\.lstm"),
    Fault("encodec", "zeros for reflected padding", patch=f.setting("encoder.layers.4.block.1", "pad_mode", "constant"), expected=r"(reflection_pad1d|constant_pad_nd) in encoder\.layers\.4\.block\.1"),
    Fault("mamba", "ReLU for softplus", patch=relu_for_softplus, expected=r"(softplus|relu) in backbone\.layers\.0\.mixer"),
    Fault("mamba", "whole run in bf16", patch=in_bf16, expected=r"dtype: .*(float32.*bfloat16)"),
    Fault("convnext", "GELU by tanh", patch=f.setting("convnext.encoder.stages.1.layers.0", "act", nn.GELU("tanh")), expected=r"argument: gelu in convnext\.encoder\.stages\.1\.layers\.0"),
    Fault("convnext", "stochastic depth left on", patch=stochastic_depth, expected=r"(rand|floor|div|mul|add) in convnext\.encoder\.stages\.1\.layers\.1\.drop_path"),
    Fault("bart", "cross attention without a mask", patch=without_keyword("model.decoder", "encoder_attention_mask"), expected=r"decoder(\.layers\.0\.encoder_attn)?[ ,]"),
    Fault("bart", "encoder detached", patch=wrapped("model.encoder", lambda output: type(output)(last_hidden_state=output.last_hidden_state.detach())), expected=r"model\.encoder"),
    Fault("gemma2", "attention not capped", patch=f.setting("model.layers.1.self_attn", "attn_logit_softcapping", None), expected=r"(div|tanh|mul) in model\.layers\.1\.self_attn"),
    Fault("gemma2", "norm sums in bf16", patch=norm_sums_in_bf16, expected=r"(dtype|missing): .*model\.layers\.1\.input_layernorm"),
    Fault("denoiser", "sine and cosine swapped", patch=f.setting("unet.time_proj", "flip_sin_to_cos", False), expected=r"cat in unet\.time_proj"),
    Fault("denoiser", "tail of group norm unwritten", "native_group_norm", 3, tail_unwritten),
]  # fmt: skip
READ_CLEAN = [
    Clean("qwen3moe", "SDPA for eager attention", f.sdpa),
    Clean("encodec", "two threads", f.threads),
    Clean("mamba", "unused random numbers", unused_random_numbers("backbone.layers.0.mixer")),
    Clean("bart", "activation checkpointing", f.checkpointing),
    Clean("convnext", "compiled", compiled),
]
UNREAD = [
    Fault("deepseek", "scale of the experts lost", patch=f.setting("model.layers.1.mlp.gate", "routed_scaling_factor", 1.0), expected=r"argument: mul in model\.layers\.1\.mlp\.gate"),
    Fault("deepseek", "shared experts lost", patch=no_shared_experts, expected=r"model\.layers\.1\.mlp\.shared_experts|zeros_like"),
    Fault("deepseek", "one expert instead of two", patch=f.setting("model.layers.1.mlp.gate", "top_k", 1), expected=r"topk in model\.layers\.1\.mlp\.gate"),
    Fault("whisper", "fixed positions trained", patch=trained_positions, expected=r"model\.encoder\.embed_positions"),
    Fault("whisper", "whole run under autocast", patch=autocast, expected=r"dtype: .*(float32.*bfloat16)"),
    Fault("swin", "windows not shifted", patch=f.setting("swin.encoder.layers.0.blocks.1", "shift_size", 0), expected=r"(roll|blocks\.1[ ,])"),
    Fault("swin", "index of positions transposed", patch=transposed_index, expected=r"source: .*(index|relative_position_bias)"),
    Fault("wav2vec2", "another blank label", patch=lambda run: setattr(run.model.config, "pad_token_id", 1), expected=r"_ctc_loss"),
    Fault("wav2vec2", "gradient of the features scaled", patch=scaled_gradient, expected=r"mul( in .*feature_extractor.*)? \(backward\)"),
    Fault("deberta", "a term of attention lost", patch=term_lost, expected=r"deberta\.encoder\.layer\.1\.attention\.self"),
    Fault("bloom", "slopes in reversed order", patch=slopes_reversed, expected=r"flip"),
    Fault("clip", "temperature clamped", patch=clamped_temperature, expected=r"clamp_"),
    Fault("image codec", "other groups in a norm", patch=f.setting("vae.decoder.conv_norm_out", "num_groups", 4), expected=r"argument: .*group_norm in vae\.decoder\.conv_norm_out"),
    Fault("image codec", "small gradients flushed", "convolution_backward", 4, small_values_flushed),
    Fault("mamba2", "Adam for AdamW", patch=coupled_decay, expected=r"(Adam\b|(add|mul_) \(optimizer\))"),
]  # fmt: skip
UNREAD_CLEAN = [
    Clean("deepseek", "activation checkpointing", f.checkpointing),
    Clean("whisper", "SDPA for eager attention", f.sdpa),
    Clean("image codec", "channels last", channels_last),
    Clean("deberta", "unused random numbers", unused_random_numbers("deberta.encoder.layer.0")),
    Clean("bloom", "compiled", compiled),
]
