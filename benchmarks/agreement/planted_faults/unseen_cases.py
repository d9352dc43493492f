"""Twenty faults of further kinds and ten pairs of right runs in unseen families, written before any was compared."""

# ruff: noqa: E501
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from benchmarks.agreement.planted_faults import faults as f
from benchmarks.agreement.planted_faults.family_cases import compiled
from benchmarks.agreement.planted_faults.faults import Clean, Fault, Run
from benchmarks.agreement.planted_faults.later_cases import config_value, images_channels_last, model_value
from benchmarks.agreement.planted_faults.right_pairs import fused, unused_random_numbers
from torch import Tensor, nn
from torch.nn import functional

# What a wrong kernel does.


def ten_bits(x: Tensor) -> Tensor:
    """The precision of TF32 and HF32."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


# Mistakes in code


def window_lost(run: Run) -> None:
    attention = run.model.transformer.h[1].attn.attention
    attention.bias = torch.ones_like(attention.bias).tril()


def plain_products(run: Run) -> AbstractContextManager[Any]:
    return mock.patch.object(functional, "normalize", lambda x, dim: x)


def left_at_its_initial_value(run: Run) -> None:
    run.model.wavlm.encoder.layers[1].attention.gru_rel_pos_const.data.fill_(1.0)


def another_trend(run: Run) -> None:
    layer = run.model.model.encoder.layers[0].decomp1
    layer.kernel_size, layer.avg = 5, nn.AvgPool1d(5, 1)


def another_share_of_the_mean(run: Run) -> AbstractContextManager[Any]:
    from transformers.models.glpn.modeling_glpn import SiLogLoss

    return mock.patch.object(SiLogLoss.__init__, "__defaults__", (0.85,))


def parts_in_another_order(run: Run) -> AbstractContextManager[Any]:
    """Query, key and value, where the weights are for query, value and key."""
    split = torch.split

    def reordered(x: Tensor, size: Any, dim: int = 0) -> Any:
        parts = split(x, size, dim=dim)
        return (parts[0], parts[2], parts[1]) if len(parts) == 3 else parts

    return mock.patch.object(torch, "split", reordered)


def strides_moved(run: Run) -> None:
    """The first convolution of a bottleneck halves the picture, not the second."""
    layer = run.model.resnet.encoder.stages[1].layers[0].layer
    layer[0].convolution.stride, layer[1].convolution.stride = (2, 2), (1, 1)


def same_half_twice(run: Run) -> None:
    run.batch = {name: torch.cat([value[:2], value[:2]]) for name, value in run.batch.items()}
    run.parts = 2


def two_parts(run: Run) -> None:
    run.parts = 2


def softmax_over_channels(run: Run) -> None:
    gate = run.model.model.encoder.mlp_mixer_encoder.mixers[0].feature_mixer.gating_block
    gate.attn_softmax = nn.Softmax(dim=-2)


# What two right runs may differ in


def rows_in_another_order(run: Run) -> None:
    run.batch = {name: value.flip(0) for name, value in run.batch.items()}


def products_by_einsum(run: Run) -> AbstractContextManager[Any]:
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = torch.einsum("...i,oi->...o", x, weight)
        return product if bias is None else product + bias

    return mock.patch.object(functional, "linear", linear)


def softmax_written_out(run: Run) -> AbstractContextManager[Any]:
    def softmax(x: Tensor, dim: int, **_: Any) -> Tensor:
        powers = (x - x.amax(dim, keepdim=True)).exp()
        return powers / powers.sum(dim, keepdim=True)

    return mock.patch.object(functional, "softmax", softmax)


FAULTS = [
    Fault("esm", "masked share not compensated", patch=f.setting("esm.embeddings", "token_dropout", False), expected=r"(eq|masked_fill|mul|div|sum|rsub|unsqueeze)\w* in esm\.embeddings"),
    Fault("roformer", "values rotated too", patch=f.setting("roformer.encoder.layer.1.attention.self", "rotary_value", True), expected=r"roformer\.encoder\.layer\.1\.attention\.self"),
    Fault("gptneo", "window of a layer lost", patch=window_lost, expected=r"source: .*transformer\.h\.1\.attn\.attention"),
    Fault("swinv2", "queries and keys not normalised", patch=plain_products, expected=r"(norm|clamp_min|div|expand|linalg_vector_norm)\w* in swinv2\.encoder\.layers\.0\.blocks\.0\.attention"),
    Fault("wavlm", "a weight left at its initial value", patch=left_at_its_initial_value, expected=r"source: .*wavlm\.encoder\.layers\.1\.attention"),
    Fault("autoformer", "trend over another window", patch=another_trend, expected=r"model\.encoder\.layers\.0\.decomp1"),
    Fault("glpn", "another share of the mean in the loss", patch=another_share_of_the_mean, expected=r"argument: mul "),
    Fault("falconh1", "scale of one branch lost", patch=f.setting("model.layers.1", "ssm_out_multiplier", 1.0), expected=r"argument: mul in model\.layers\.1\b"),
    Fault("diffllama", "lambda of another depth", patch=f.setting("model.layers.1.self_attn", "lambda_init", 0.2), expected=r"argument: (add|rsub|mul)\w* in model\.layers\.1\.self_attn"),
    Fault("codegen", "query, key, value in another order", patch=parts_in_another_order, expected=r"in transformer\.h\.0\.attn"),
    Fault("olmo", "queries and keys not clipped", patch=config_value(clip_qkv=None), expected=r"clamp_? in model\.layers\.0\.self_attn"),
    Fault("siglip", "a product with ten bits", "addmm", 9, ten_bits),
    Fault("funnel", "largest for the mean", patch=config_value(pooling_type="max"), expected=r"(avg|max)_pool2d\w* in funnel\.encoder"),
    Fault("patchtsmixer", "gate over the other axis", patch=softmax_over_channels, expected=r"argument: _softmax in .*mixers\.0\.feature_mixer\.gating_block"),
    Fault("lilt", "x and y of boxes exchanged", patch=f.batch("bbox", lambda x: x[..., [1, 0, 3, 2]]), expected=r"source: .*(select|embedding|sub|bbox|lilt\.layout_embeddings)"),
    Fault("convbert", "windows shifted by one", "im2col", 1, f.rolled),
    Fault("bottlenecks", "strides moved to another convolution", patch=strides_moved, expected=r"argument: convolution in resnet\.encoder\.stages\.1\.layers\.0\.layer\.0"),
    Fault("edm", "another spread of the data", patch=model_value(spread=1.0), expected=r"argument: (add|mul|div|rsub|pow)\w*"),
    Fault("statespace", "conjugate half left out", patch=model_value(doubled=1.0), expected=r"argument: mul"),
    Fault("helium", "the same half of a batch twice", left=two_parts, patch=same_half_twice, expected=r"source: "),
]  # fmt: skip
CLEAN = [
    Clean("roformer", "checkpointing", f.checkpointing),
    Clean("bottlenecks", "channels last", images_channels_last),
    Clean("esm", "SDPA", f.sdpa),
    Clean("wavlm", "two threads", f.threads),
    Clean("decision", "compiled", compiled),
    Clean("falconh1", "rows in another order", rows_in_another_order),
    Clean("codegen", "unused random numbers", unused_random_numbers),
    Clean("helium", "fused AdamW", fused),
    Clean("xlstm", "products by einsum", products_by_einsum),
    Clean("patchtsmixer", "softmax written out", softmax_written_out),
]
