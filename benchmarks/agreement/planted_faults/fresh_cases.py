"""Eighteen faults of further kinds and six pairs of right runs in fresh families, written before any was compared."""

# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

import torch
from benchmarks.agreement.planted_faults import faults as f
from benchmarks.agreement.planted_faults.faults import Clean, Fault, Run
from torch import Tensor, nn
from torch.nn import functional

# What a wrong kernel does.


def first_of_batch_for_all(x: Tensor) -> Tensor:
    return x[:1].expand_as(x).contiguous()


def without_its_own_element(x: Tensor) -> Tensor:
    """A running sum that leaves out the element it has come to."""
    return torch.cat([torch.zeros_like(x[..., :1]), x[..., :-1]], -1)


# Mistakes in code


def another_base(run: Run) -> None:
    rotary = run.model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.pow(1.5)


def orthonormal(run: Run) -> None:
    for module in run.model.modules():
        if hasattr(module, "fourier_transform"):
            module.fourier_transform = partial(torch.fft.fftn, dim=(1, 2), norm="ortho")


def norm_over_channels(run: Run) -> None:
    module = run.model.get_submodule("convnextv2.encoder.stages.1.layers.0.grn")

    def forward(x: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(x, ord=2, dim=-1, keepdim=True)
        out: Tensor = module.weight * (x * (norms / (norms.mean(dim=-1, keepdim=True) + 1e-6))) + module.bias + x
        return out

    module.forward = forward


def hard_sigmoid(run: Run) -> None:
    run.model.regnet.encoder.stages[1].layers[1].layer[2].attention[3] = nn.Hardsigmoid()


def padding_counts(run: Run) -> None:
    run.model.poolformer.encoder.block[1][0].pooling.pool.count_include_pad = True


def layer_scale_lost(run: Run) -> None:
    layer = run.model.beit.layers[1]
    del layer.lambda_1
    layer.lambda_1 = 1.0


def scaled_by_root(run: Run) -> None:
    module = run.model.base_model.model.model.layers[1].self_attn.q_proj
    module.scaling["default"] = 8 / 4**0.5


def dropped_more(run: Run) -> None:
    run.model.transformer.h[1].mlp.dropout.p = 0.3


def positions_from_zero(run: Run) -> None:
    run.batch["position_ids"] = torch.arange(12).expand(2, 12)


def in_the_middle(step: float) -> Callable[[Run], None]:
    """AdamW after a hundred steps, whose count is kept or lost on resuming."""

    def patch(run: Run) -> None:
        for group in run.optimizer.param_groups:
            for weight in group["params"]:
                state = run.optimizer.state[weight]
                state["step"] = torch.tensor(step)
                state["exp_avg"] = torch.full_like(weight, 1e-3)
                state["exp_avg_sq"] = torch.full_like(weight, 1e-6)

    return patch


def keys_not_normalised(run: Run) -> AbstractContextManager[Any]:
    from transformers.models.qwen3_next import modeling_qwen3_next as module

    rule = module.torch_chunk_gated_delta_rule
    return mock.patch.object(
        module, "torch_chunk_gated_delta_rule", lambda *a, **k: rule(*a, **{**k, "use_qk_l2norm_in_kernel": False})
    )  # fmt: skip


def half_the_iterations(run: Run) -> None:
    attention = run.model.nystromformer.encoder.layer[1].attention.self
    attention.iterative_inv = partial(type(attention).iterative_inv, attention, n_iter=3)


# What two right runs may differ in


def loss_in_chunks(run: Run) -> None:
    """Logits and loss of four tokens at a time, as for a large vocabulary."""

    def forward(input_ids: Tensor, labels: Tensor) -> Any:
        states = run_model.model(input_ids=input_ids).last_hidden_state[:, :-1].flatten(0, 1)
        wanted, total = labels[:, 1:].flatten(), torch.zeros(())
        for some, few in zip(torch.split(states, 4), torch.split(wanted, 4), strict=True):
            total = total + functional.cross_entropy(run_model.lm_head(some), few, reduction="sum")
        return total / len(wanted)

    run_model = run.model
    run_model.forward = forward


def without_onednn(run: Run) -> AbstractContextManager[Any]:
    return torch.backends.mkldnn.flags(enabled=False)


def reentrant(run: Run) -> None:
    run.model.gradient_checkpointing_enable({"use_reentrant": True})


def gradients_begin_at_zero(run: Run) -> None:
    for weight in run.model.parameters():
        weight.grad = torch.zeros_like(weight)


def sums_reversed(run: Run) -> AbstractContextManager[Any]:
    """Products that add up from the end, as another library may do."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = x.flip(-1) @ weight.flip(-1).t()
        return product if bias is None else product + bias

    return mock.patch.object(functional, "linear", linear)


def sdpa_row_by_row(run: Run) -> AbstractContextManager[Any]:
    attend = functional.scaled_dot_product_attention

    def row_by_row(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, **keywords: Any) -> Tensor:
        masks = [None] * len(query) if attn_mask is None else list(attn_mask.expand(len(query), -1, -1, -1)[:, None])
        rows = zip(query[:, None], key[:, None], value[:, None], masks, strict=True)
        return torch.cat([attend(q, k, v, attn_mask=mask, **keywords) for q, k, v, mask in rows])

    run.model.set_attn_implementation("sdpa")
    return mock.patch.object(functional, "scaled_dot_product_attention", row_by_row)


FAULTS = [
    Fault("smollm3", "positions in a layer without", patch=f.setting("model.layers.1.self_attn", "use_rope", True), expected=r"(mul|neg|cat|slice|unsqueeze|add).* in model\.layers\.1\.self_attn"),
    Fault("glm4", "another base of the rotation", patch=another_base, expected=r"source: .*model\.rotary_emb"),
    Fault("fnet", "Fourier transform normalised", patch=orthonormal, expected=r"argument: _fft_\w+ in fnet\.encoder\.layer\.0\.fourier"),
    Fault("xlnet", "relative distances clamped", patch=f.setting("transformer", "clamp_len", 3), expected=r"clamp"),
    Fault("convnextv2", "response normalised over channels", patch=norm_over_channels, expected=r"(linalg_vector_norm|mean|norm) in convnextv2\.encoder\.stages\.1\.layers\.0\.grn"),
    Fault("regnet", "hard sigmoid for sigmoid", patch=hard_sigmoid, expected=r"sigmoid in regnet\.encoder\.stages\.1\.layers\.1\.layer\.2\.attention\.3"),
    Fault("poolformer", "padding counted in the mean", patch=padding_counts, expected=r"argument: avg_pool2d in poolformer\.encoder\.block\.1\.0\.pooling"),
    Fault("beit", "layer scale left out", patch=layer_scale_lost, expected=r"(mul in|missing: .*) ?beit\.layers\.1\b"),
    Fault("pvt", "colours in another order", patch=f.batch("pixel_values", lambda x: x.flip(1)), expected=r"source: .*(convolution|pvt\.encoder\.patch_embeddings\.0)"),
    Fault("lora", "adapter scaled by the root of its rank", patch=scaled_by_root, expected=r"argument: mul in base_model\.model\.model\.layers\.1\.self_attn\.q_proj"),
    Fault("gptj", "another share dropped", patch=dropped_more, expected=r"argument: (native_dropout|bernoulli_?|dropout) in transformer\.h\.1\.mlp\.dropout"),
    Fault("mpnet", "positions count from zero", patch=positions_from_zero, expected=r"(source|missing|argument): .*(mpnet\.embeddings|position_embeddings|cumsum|add|ne)"),
    Fault("lfm2", "step count lost on resuming", left=in_the_middle(100.0), patch=in_the_middle(0.0), expected=r"(argument|source|operator): .*(step|addcdiv|sqrt|div|AdamW|add_? \(optimizer\))"),
    Fault("qwen3next", "keys and queries not normalised", patch=keys_not_normalised, expected=r"(mul|sum|rsqrt|transpose|_to_copy|clone|missing).*model\.layers\.0\.linear_attn"),
    Fault("nystromformer", "half the iterations of an inverse", patch=half_the_iterations, expected=r"(bmm|mul|sub|expand|rsub|matmul).* in nystromformer\.encoder\.layer\.1\.attention\.self"),
    Fault("quantised", "another weight of the commitment", patch=f.setting("vq.quantize", "beta", 1.0), expected=r"argument: mul in vq\.quantize"),
    Fault("minimax", "first row's product for all rows", "bmm", 5, first_of_batch_for_all),
    Fault("zamba2", "running sum without its own element", "cumsum", 0, without_its_own_element),
]  # fmt: skip
CLEAN = [
    Clean("timeseries", "products added up from the end", sums_reversed),
    Clean("olmo2", "loss in chunks", loss_in_chunks),
    Clean("regnet", "without oneDNN", without_onednn),
    Clean("lfm2", "reentrant checkpointing", reentrant),
    Clean("glm4", "gradients begin at zero", gradients_begin_at_zero),
    Clean("smollm3", "SDPA row by row", sdpa_row_by_row),
]  # fmt: skip
