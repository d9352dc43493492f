"""Attention on (batch, head, sequence, depth) tensors, forward and backward, that all attention ops share."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .attention_mask import Pattern
from .common import wide

_HAS_FLASH = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")  # from torch 2.2 on
if _HAS_FLASH:
    _flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    _flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
# Before torch 2.9 it reads beyond the end of keys with fewer heads than queries.
_FLASH_SHARES_HEADS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Rules:
    """What happens between the two products: softmax(scale q k^T + bias, beside a sink), masked, then dropout.

    All in fp32, unless `in_half`: then scores and weights are rounded to fp16, as the kernels that are fast do.
    """

    scale: float
    pattern: Pattern = field(default_factory=Pattern)
    bias: Tensor | None = None
    sink: Tensor | None = None
    keep: Tensor | None = None
    keep_prob: float = 1.0
    in_half: bool = False

    def plain(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether PyTorch's own CPU flash attention does the same."""
        extras = (self.bias, self.sink, self.keep)
        plain = not self.in_half and all(extra is None for extra in extras)
        return _HAS_FLASH and q.size(-1) == k.size(-1) == v.size(-1) and plain


def attend(q: Tensor, k: Tensor, v: Tensor, rules: Rules, exact: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The output in q's dtype, and the maximum and the sum of exponentials of every row of scores in fp32.

    Fewer key heads than query heads are shared by neighbours. A row that sees nothing gives zeros. Unless `exact`, the
    fast path may answer with the log-sum-exp as the maximum and 1 as the sum: whoever combines both gets the same.
    """
    if not q.numel() or not k.numel():
        lowest = q.new_full(q.shape[:-1], _LOWEST, dtype=torch.float32)
        return q.new_zeros((*q.shape[:-1], v.size(-1))), lowest, torch.ones_like(lowest)
    if rules.plain(q, k, v) and not exact:
        out, lse = _flash(
            *map(_flat, _for_flash(q, k, v)), 0.0, rules.pattern.causal, attn_mask=_additive(rules), scale=rules.scale
        )
        if rules.pattern.drop is not None:
            lse.masked_fill_(rules.pattern.drop.all(-1), _LOWEST)
        return out.to(q.dtype), lse, torch.ones_like(lse)
    scores = _scores(q, k, rules)
    top = scores.amax(-1, keepdim=True).clamp_min_(_LOWEST)
    if rules.sink is not None:
        top = top.maximum(rules.sink.float().view(-1, 1, 1))
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if rules.sink is not None:
        total += (rules.sink.float().view(-1, 1, 1) - top).exp()
    total.masked_fill_(total == 0, 1.0)
    weights = weights.div_(total)
    if rules.in_half:
        weights = weights.half().float()
    out = _dropout(weights, rules) @ _share(v, q).float()
    return out.to(q.dtype), top.squeeze(-1), total.squeeze(-1)


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, rules: Rules
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of q, k, v, of the bias (over every batch, head, query and key, in fp32) and of the sink."""
    if rules.plain(q, k, v) and q.numel() and k.numel():
        given = map(_flat, (grad, *_for_flash(q, k, v), out))
        dq, *others = _flash_backward(
            *given, lse, 0.0, rules.pattern.causal, attn_mask=_additive(rules), scale=rules.scale
        )
        dk, dv = (grad_one if grad_one.size(1) == k.size(1) else _gather(grad_one, k) for grad_one in others)
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None
    weights = _scores(q, k, rules).sub_(lse.unsqueeze(-1)).exp_()
    grad = grad.float()
    mean = (grad * out).sum(-1, keepdim=True)
    dv = _dropout(weights, rules).transpose(-1, -2) @ grad
    dweights = _dropout(grad @ _share(v, q).float().transpose(-1, -2), rules)
    dscores = weights * (dweights - mean)
    dq = dscores @ _share(k, q).float() * rules.scale
    dk = dscores.transpose(-1, -2) @ q.float() * rules.scale
    dsink = None
    if rules.sink is not None:
        share = (rules.sink.float().view(-1, 1) - lse).exp()
        dsink = -(share * mean.squeeze(-1)).sum((0, 2))
    dbias = None if rules.bias is None else dscores
    return dq.to(q.dtype), _gather(dk, k), _gather(dv, v), dbias, dsink


def _scores(q: Tensor, k: Tensor, rules: Rules) -> Tensor:
    keys = _share(k, q).float().transpose(-1, -2)
    q = q.float()
    scores = ((q @ keys).half() * rules.scale).float() if rules.in_half else (q * rules.scale) @ keys
    if rules.bias is not None:
        scores = scores + rules.bias
    drop = rules.pattern.drop
    if rules.pattern.causal:
        drop = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
    return scores if drop is None else scores.masked_fill_(drop, float("-inf"))


def _dropout(x: Tensor, rules: Rules) -> Tensor:
    return x if rules.keep is None else x * rules.keep / rules.keep_prob


def _additive(rules: Rules) -> Tensor | None:
    """The mask as numbers to add: what the flash kernel takes, of two or four dimensions."""
    drop = rules.pattern.drop
    if drop is None:
        return None
    drop = drop if drop.dim() in (2, 4) else drop.unsqueeze(0)
    return torch.zeros(drop.shape).masked_fill_(drop, float("-inf"))


def _share(kv: Tensor, q: Tensor) -> Tensor:
    """Every key head once for each of the query heads that use it."""
    return kv if kv.size(1) == q.size(1) else kv.repeat_interleave(q.size(1) // kv.size(1), 1)


def _for_flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (q, k, v) if _FLASH_SHARES_HEADS else (q, _share(k, q), _share(v, q))


def _gather(grad: Tensor, kv: Tensor) -> Tensor:
    """The inverse of `_share` for gradients: sum over the query heads that shared a key head."""
    return grad.unflatten(1, (kv.size(1), -1)).sum(2).to(kv.dtype)


def _flat(x: Tensor) -> Tensor:
    """x as the flash kernel takes it here: in fp32, with neighbours of the last dimension side by side."""
    x = wide(x)
    return x if x.stride(-1) == 1 else x.contiguous()
