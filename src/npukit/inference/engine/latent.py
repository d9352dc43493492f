"""Multi-head latent attention (MLA) over the paged cache.

A token's keys and values are unpacked from one latent vector, by a matrix of their layer, and each key ends with a
rotated part that all heads share. The cache keeps the vector and the rotated part, a fraction of what they unpack to.
Tokens that attend on their own leave the vectors packed: the queries take the matrix's part for keys, and the results
its part for values ("absorbed"). Long prompts unpack the tokens of their sequences, which takes fewer products there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npukit.inference.engine.adapters import AdaptedLinear
from npukit.inference.engine.paged import NAME, PagedCall, PagedRows, Prefill


def is_latent(module: Any) -> bool:
    """Whether an attention module of transformers is of this kind."""
    return hasattr(module, "expand_kv")


def keep_packed(module: Any) -> None:
    """Let a module hand latent vectors and rotated keys, instead of keys and values, to attention over the cache."""
    module.expand_kv = MethodType(_packed, module)


def _packed(module: Any, latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    if module.config._attn_implementation.startswith(NAME):
        return latents, rotated
    unpacked: tuple[Tensor, Tensor] = type(module).expand_kv(module, latents, rotated)
    return unpacked


def attend_rows(
    module: Any, rows: Callable[[PagedCall, PagedRows], Tensor], call: PagedCall, batch: PagedRows
) -> Tensor:
    """The attention of a module with a kernel that attends to latent vectors."""
    query, rotated = torch.split(call.query, [module.qk_nope_head_dim, module.qk_rope_head_dim], -1)
    matrix = _matrix(module, module.kv_b_proj)
    absorbed = _for_keys(module, query, matrix)
    result = rows(call._replace(query=torch.cat((absorbed, rotated), -1)), batch)
    return _for_values(module, result, matrix)


def attend_prefill(
    module: Any,
    prefill: Callable[[Tensor, Tensor, Tensor, Prefill, float, int | None], Tensor],
    query: Tensor,
    latents: Tensor,
    rotated: Tensor,
    prompts: Prefill,
    scale: float,
    window: int | None,
) -> Tensor:
    """The same with a kernel for keys and values, whose sizes have to be equal."""
    with _adapters_of_sequences(module.kv_b_proj, prompts):
        unpacked = type(module).expand_kv(module, latents.transpose(0, 1)[None], rotated.transpose(0, 1)[None])
    keys, values = (part[0].transpose(0, 1) for part in unpacked)
    size = max(module.qk_head_dim, module.v_head_dim)
    query, keys, values = (F.pad(part, (0, size - part.shape[-1])) for part in (query, keys, values))
    return prefill(query, keys, values, prompts, scale, window)[..., : module.v_head_dim]


def _adapters_of_sequences(linear: nn.Module, prompts: Prefill) -> contextlib.AbstractContextManager[None]:
    """A context in which all tokens of each sequence, rather than the new ones, are computed with its adapter."""
    if not isinstance(linear, AdaptedLinear):
        return contextlib.nullcontext()
    firsts, counts = prompts.new_borders[:-1].long(), prompts.borders.diff()
    return linear.adapters.at(firsts.repeat_interleave(counts, output_size=sum(prompts.total)))


def _matrix(module: Any, linear: Any) -> Tensor:
    """What unpacks a latent vector, [heads, size of key and value, size of the vector], without adapters. A layer that
    is more than its weight (in 8 bits, or in training) tells by what it makes of unit vectors.
    """
    if isinstance(linear, AdaptedLinear):
        return _matrix(module, linear.base)
    if type(linear) is nn.Linear:
        weight: Tensor = linear.weight
    else:
        norm = module.kv_a_layernorm.weight
        weight = linear(torch.eye(module.kv_lora_rank, dtype=norm.dtype, device=norm.device)).T
    return weight.view(-1, module.qk_nope_head_dim + module.v_head_dim, module.kv_lora_rank)


def _for_keys(module: Any, query: Tensor, matrix: Tensor) -> Tensor:
    """Queries [tokens, heads, size] for latent vectors instead of unpacked keys."""
    keys = matrix[:, : module.qk_nope_head_dim]
    result = torch.einsum("thk,hkr->thr", query, keys)
    if (adapted := _adapted(module, matrix)) is not None:
        a, b, mask = adapted
        result = result + (torch.einsum("thk,hka->tha", query, b[:, : module.qk_nope_head_dim]) * mask) @ a
    return result


def _for_values(module: Any, result: Tensor, matrix: Tensor) -> Tensor:
    """The results [tokens, heads, size] that unpacked values would have given, from those of latent vectors."""
    values = torch.einsum("thr,hvr->thv", result, matrix[:, module.qk_nope_head_dim :])
    if (adapted := _adapted(module, matrix)) is not None:
        a, b, mask = adapted
        values = values + torch.einsum("tha,hva->thv", (result @ a.T) * mask, b[:, module.qk_nope_head_dim :])
    return values


def _adapted(module: Any, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The adapters of the matrix: A, B for each head, and which columns each token uses."""
    linear = module.kv_b_proj
    if not isinstance(linear, AdaptedLinear) or linear.adapters.mask is None:
        return None
    return linear.a, linear.b.view(*matrix.shape[:2], -1), linear.adapters.mask.to(matrix.dtype)[:, None]
