"""Attention over packed rows: several rows of data are concatenated, and each attends only to itself.

It is registered with transformers under its own name, so every model that selects its attention by name can use it. The
boundaries of the rows come with each batch: `cu_seqlens` as a tensor for CUDA, `row_ends` as numbers on the host for
NPUs, whose kernel needs them there (reading them back from the card would cost a wait per layer). Rows of equal
`row_length` form an ordinary batch, for which there are faster kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.llm.models.sequence import SharedRows

NAME = "npukit_packed"
# The NPU's kernel accepts one mask of this size for any row length; sparse mode 3 is causal, aligned to the end.
_NPU_MASK, NPU_CAUSAL = 2048, 3


def register() -> None:
    """Register the attention with transformers as `npukit_packed`.

    transformers knows no mask function for this name, so it creates no mask. Nor does it search the positions for
    packed rows, for which the host would have to wait for the device.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)


def watch_scores(model: Any, device: torch.device) -> None:
    """Record the largest attention score of each layer of a language model during training.

    The score itself is hidden inside fused kernels, so this is an upper bound: the longest query times the longest key.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    name = model.config.get_text_config()._attn_implementation
    if name not in ALL_ATTENTION_FUNCTIONS:
        raise NpukitError(
            f"training.optimizer muonclip cannot see the attention of {model.config.model_type}: use muon."
        )
    function, largest = ALL_ATTENTION_FUNCTIONS[name], torch.zeros((), device=device)
    for module in model.get_decoder().modules():
        if hasattr(module, "q_proj"):
            module.largest_score = largest
    if not hasattr(function, "__wrapped__"):
        AttentionInterface.register(name, _watched(function))


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def attend(module: Any, query: Tensor, key: Tensor, *args: Any, **options: Any) -> Any:
        if module.training and hasattr(module, "largest_score"):
            scale = options.get("scaling") or query.shape[-1] ** -0.5
            lengths = [torch.linalg.vector_norm(part.detach(), dim=-1, dtype=torch.float32) for part in (query, key)]
            bound = lengths[0].amax() * lengths[1].amax() * scale
            module.largest_score.copy_(torch.maximum(module.largest_score, bound))
        return function(module, query, key, *args, **options)

    return attend


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seqlens: Tensor | None = None,
    max_length: int = 0,
    row_ends: tuple[int, ...] | None = None,
    row_length: int | None = None,
    shared: SharedRows | None = None,
    groups: Sequence[Mapping[str, Any]] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row. Query is [1, heads, tokens, size]; the result is [1, tokens, heads, size].

    With `groups`, a module in training attends within groups: one division for the first half of its heads, another for
    the second half.
    """
    if groups and module.training:
        return _in_groups(module, query, key, value, groups, scaling=scaling, dropout=dropout, window=sliding_window)
    heads = query.shape[1]
    if shared:
        query, key, value = shared.heads(query, key, value)
    query, key, value = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    able = abilities(query.device)
    if row_length is not None and (sliding_window is None or sliding_window >= row_length):
        result = _rows_alike(query, key, value, row_length, scale, dropout)
    elif able.flash_attention and cu_seqlens is not None:
        result = varlen_on_cuda(query, key, value, cu_seqlens, max_length, scale, dropout, sliding_window)
    elif row_ends is None:
        raise ValueError("packed attention needs the rows' borders: row_ends, or cu_seqlens on CUDA")
    elif able.torch_npu and query.dtype != torch.float32 and sliding_window is None:
        result = varlen_on_npu(query, key, value, row_ends, scale, dropout)
    else:
        result = _row_by_row(query, key, value, row_ends, scale, dropout, sliding_window)
    return (shared.tokens(result, heads) if shared else result).unsqueeze(0), None


def _in_groups(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Sequence[Mapping[str, Any]],
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> tuple[Tensor, None]:
    times = 2 if key.shape[1] % 2 and key.shape[1] < query.shape[1] else 1  # so that each half has its own key heads
    halves = zip(*(part.chunk(2, 1) for part in (query, *_repeated(key, value, times))), groups, strict=True)
    attended = [
        packed_attention(module, q, k, v, None, scaling, dropout, window, **borders)[0] for q, k, v, borders in halves
    ]
    return torch.cat(attended, 2), None


def _repeated(key: Tensor, value: Tensor, times: int) -> tuple[Tensor, Tensor]:
    return key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)


def _rows_alike(query: Tensor, key: Tensor, value: Tensor, length: int, scale: float, dropout: float) -> Tensor:
    """Rows of equal length need no boundaries: they are a batch."""
    q, k, v = (part.view(-1, length, *part.shape[1:]).transpose(1, 2) for part in (query, key, value))
    grouped = q.shape[1] != k.shape[1]
    result = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, dropout_p=dropout, enable_gqa=grouped)
    return result.transpose(1, 2).flatten(0, 1)


def varlen_on_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    scale: float,
    dropout: float,
    window: int | None = None,
    causal: bool = True,
) -> Tensor:
    """Attention within each of several rows of different lengths."""
    # torch.nn.attention.varlen also calls this, but has no dropout, and before torch 2.13 no grouped heads.
    if torch.is_autocast_enabled("cuda"):  # autocast does not apply to this operator
        query, key, value = (part.to(torch.get_autocast_dtype("cuda")) for part in (query, key, value))
    borders = (cu_seqlens, cu_seqlens, longest, longest)
    left = None if window is None else window - 1
    right = None if window is None else 0
    result: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, *borders, dropout, causal, False, scale=scale, window_size_left=left, window_size_right=right
    )[0]
    return result


def varlen_on_npu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_ends: tuple[int, ...],
    scale: float,
    dropout: float,
    causal: bool = True,
) -> Tensor:
    """Attention within each of several rows of different lengths."""
    import torch_npu

    mask = {"atten_mask": causal_mask(query.device), "sparse_mode": NPU_CAUSAL} if causal else {}
    result: Tensor = torch_npu.npu_fusion_attention(
        query, key, value, query.shape[1], "TND", scale=scale, keep_prob=1 - dropout, actual_seq_qlen=row_ends,
        actual_seq_kvlen=row_ends, **mask,
    )[0]  # fmt: skip
    return result


_masks: dict[torch.device, Tensor] = {}


def causal_mask(device: torch.device) -> Tensor:
    """True where a query must not look, the opposite of torch's masks."""
    if device not in _masks:
        _masks[device] = torch.ones(_NPU_MASK, _NPU_MASK, dtype=torch.bool, device=device).triu_(1)
    return _masks[device]


@_disable_dynamo  # a single loop would be compiled for every number of rows, and incorrectly for a row of one token
def _row_by_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    row_ends: tuple[int, ...],
    scale: float,
    dropout: float,
    window: int | None,
) -> Tensor:
    results, start = [], 0
    for end in row_ends:
        q, k, v = (part[start:end].transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        grouped = q.shape[1] != k.shape[1]
        options: dict[str, Any] = {"scale": scale, "dropout_p": dropout, "enable_gqa": grouped}
        if window is not None and end - start > window:
            place = torch.arange(end - start, device=query.device)
            ahead = place[:, None] - place[None, :]
            result = F.scaled_dot_product_attention(q, k, v, attn_mask=(ahead >= 0) & (ahead < window), **options)
        else:
            result = F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        results.append(result.squeeze(0).transpose(0, 1))
        start = end
    return torch.cat(results)


def for_attention(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with the boundaries of packed rows, if there are any, where the device's attention needs them."""
    if "cu_seqlens" not in batch:
        return batch
    unused = "row_ends" if batch["input_ids"].is_cuda else "cu_seqlens"
    if unused == "row_ends":
        torch._dynamo.mark_dynamic(batch["cu_seqlens"], 0)  # their number changes, and this avoids recompiling layers
    return {name: value for name, value in batch.items() if name != unused}
