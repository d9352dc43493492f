"""One call of npu_fusion_attention, whatever its version and layout: as pieces that `attention_core` computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from .attention_core import Rules, attend, attend_backward
from .attention_layout import Lengths, dense, spans, undense
from .attention_mask import pattern

_LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")
_SPELLINGS = {"pre_tockens": "pre_tokens", "next_tockens": "next_tokens", "scale_value": "scale"}


@dataclass(frozen=True)
class AttentionCall:
    """The arguments that change the result, named as version 2 names them; lengths are running totals (layout TND)."""

    head_num: int
    input_layout: str
    scale: float = 1.0
    keep_prob: float = 1.0
    pse: Tensor | None = None
    pse_type: int = 1
    atten_mask: Tensor | None = None
    pre_tokens: int = 2147483647
    next_tokens: int = 2147483647
    prefix: Sequence[int] | None = None
    actual_seq_qlen: Lengths = None
    actual_seq_kvlen: Lengths = None
    sparse_mode: int = 0
    softmax_layout: str = ""
    sink: Tensor | None = None
    q_start_idx: Sequence[int] | None = None
    kv_start_idx: Sequence[int] | None = None

    @classmethod
    def of(cls, head_num: int, input_layout: str, arguments: dict[str, Any]) -> AttentionCall:
        """From an op's arguments, with the spelling of any version."""
        if input_layout.upper() not in _LAYOUTS:
            raise ValueError(f"The input_layout of npu_fusion_attention is one of {_LAYOUTS}, not {input_layout}.")
        spelled = {_SPELLINGS.get(name, name): value for name, value in arguments.items()}
        known = {field.name for field in fields(cls)}
        return cls(head_num, input_layout.upper(), **{name: value for name, value in spelled.items() if name in known})

    @property
    def ragged(self) -> bool:
        return self.input_layout == "TND"

    def rules(self, queries: int, keys: int, keep: Tensor | None) -> Rules:
        """The rules of one dense piece, of which `keep` is the dropout mask."""
        seen = pattern(self.atten_mask, self.sparse_mode, self.pre_tokens, self.next_tokens, queries, keys, self.prefix)
        keep = None if keep is None else keep.view(-1, self.head_num, queries, keys)
        return Rules(self.scale, seen, self._bias(queries, keys), self.sink, keep, self.keep_prob)

    def _bias(self, queries: int, keys: int) -> Tensor | None:
        """What pse adds to the scaled scores: type 1 is scaled too, 0 is not, 2 and 3 are the slopes of an ALiBi."""
        if self.pse is None:
            return None
        if self.pse_type in (2, 3):
            start = (self.q_start_idx or [0])[0] - (self.kv_start_idx or [0])[0]
            distance = (torch.arange(queries).unsqueeze(1) + start - torch.arange(keys)).abs().float()
            slopes = self.pse.float().view(-1, self.head_num, 1, 1)
            return -slopes * (distance if self.pse_type == 2 else distance.sqrt())
        if self.pse.size(-2) not in (1, queries):
            raise NotImplementedError(
                f"The simulated npu_fusion_attention takes a pse of {queries} rows, not one compressed to "
                f"{self.pse.size(-2)}: pass it in full."
            )
        return self.pse.float() * (self.scale if self.pse_type == 1 else 1.0)

    def pse_gradient(self, dbias: Tensor | None) -> Tensor | None:
        """The gradient of pse from that of what it added; the slopes of an ALiBi are not learnt."""
        if self.pse is None or dbias is None:
            return None
        if self.pse_type in (2, 3):
            return torch.zeros_like(self.pse)
        return (dbias.sum_to_size(self.pse.shape) * (self.scale if self.pse_type == 1 else 1.0)).to(self.pse.dtype)

    def sequences(self) -> Iterator[tuple[slice, slice, AttentionCall]]:
        """Layout TND: the rows of each sequence's queries and keys, and the call as that sequence sees it.

        Modes 7 and 8 are 3 and 2 for sequences that were cut across cards: the last or the first one is a band.
        """
        pairs = self.pairs()
        cut = {7: len(pairs) - 1, 8: 0}.get(self.sparse_mode)
        for index, (queries, keys) in enumerate(pairs):
            mode = 4 if index == cut else {7: 3, 8: 2}.get(self.sparse_mode, self.sparse_mode)
            prefix = [self.prefix[index]] if self.prefix else None
            yield queries, keys, replace(self, sparse_mode=mode, prefix=prefix)

    def pairs(self) -> list[tuple[slice, slice]]:
        """The running totals as slices of queries and keys."""
        return list(zip(spans(self.actual_seq_qlen), spans(self.actual_seq_kvlen), strict=True))

    def elements(self, query: Tensor, key: Tensor) -> int:
        """How many scores there are, so how long the dropout mask is."""
        if self.ragged:
            return self.head_num * sum((q.stop - q.start) * (k.stop - k.start) for q, k in self.pairs())
        queries, keys = (dense(x, self.input_layout, 1) for x in (query, key))
        return queries.size(0) * self.head_num * queries.size(2) * keys.size(2)

    def views(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Dense views; where heads are folded into the last dimension, key tells how many it has by its depth.

        One batch stands for all: F.scaled_dot_product_attention broadcasts.
        """
        q = dense(query, self.input_layout, self.head_num)
        kv_heads = key.size(-1) // q.size(3)
        k, v = dense(key, self.input_layout, kv_heads), dense(value, self.input_layout, kv_heads)
        batch = q.size(0) if k.size(0) == 1 else k.size(0)
        return q.expand(batch, -1, -1, -1), k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)


def forward(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, keep: Tensor | None) -> tuple[Tensor, ...]:
    """Output, row maxima and row sums, and an empty tensor: what every version returns first."""
    unused = query.new_empty(0)
    if call.ragged:
        return *_forward_ragged(query, key, value, call, keep), unused
    q, k, v = call.views(query, key, value)
    eight = (*q.shape[:3], 8)
    if query.is_meta:
        out = undense(q.new_empty((*q.shape[:3], v.size(3))), call.input_layout)
        return out, *(q.new_empty(eight, dtype=torch.float32) for _ in range(2)), unused
    out, top, total = attend(q, k, v, call.rules(q.size(2), k.size(2), keep))
    statistics = (x.unsqueeze(-1).expand(eight).contiguous() for x in (top, total))
    return undense(out, call.input_layout), *statistics, unused


def _forward_ragged(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, keep: Tensor | None
) -> tuple[Tensor, ...]:
    out = query.new_zeros((*query.shape[:2], value.size(2)))
    top = query.new_zeros((*query.shape[:2], 8), dtype=torch.float32)
    total = torch.ones_like(top)
    for rows, columns, piece, part in _pieces(call, keep) if not query.is_meta else ():
        q, k, v = _piece(query, rows), _piece(key, columns), _piece(value, columns)
        attended, *statistics = attend(q, k, v, piece.rules(q.size(2), k.size(2), part), exact=True)
        _piece(out, rows).copy_(attended)
        for whole, of_piece in zip((top, total), statistics, strict=True):
            _statistics(whole, rows, call).copy_(of_piece[0].unsqueeze(-1))
    return out, top, total


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    call: AttentionCall,
    keep: Tensor | None,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    out: Tensor,
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, pse (None without one) and sink (empty without one)."""
    dsink = query.new_zeros(0 if call.sink is None else call.sink.shape, dtype=torch.float32)
    if query.is_meta:
        dpse = None if call.pse is None else torch.empty_like(call.pse)
        return *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)), dpse, dsink
    if call.ragged:
        statistics = softmax_max.contiguous(), softmax_sum.contiguous()
        return _backward_ragged(query, key, value, dy, call, keep, *statistics, out, dsink)
    q, k, v = call.views(query, key, value)
    dy, out = (dense(x, call.input_layout, call.head_num) for x in (dy, out))
    rules = call.rules(q.size(2), k.size(2), keep)
    *grads, dbias, of_sink = attend_backward(dy, q, k, v, out, _lse(softmax_max, softmax_sum), rules)
    dpse = call.pse_gradient(dbias)
    undensed = (undense(grad, call.input_layout) for grad in grads)
    unbroadcast = (grad.sum_to_size(x.shape) for grad, x in zip(undensed, (query, key, value), strict=True))
    return *unbroadcast, dpse, dsink if of_sink is None else of_sink


def _backward_ragged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    call: AttentionCall,
    keep: Tensor | None,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    out: Tensor,
    dsink: Tensor,
) -> tuple[Tensor | None, ...]:
    grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
    dpse = None if call.pse is None else torch.zeros_like(call.pse)
    for rows, columns, piece, part in _pieces(call, keep):
        q, k, v = _piece(query, rows), _piece(key, columns), _piece(value, columns)
        lse = _lse(_statistics(softmax_max, rows, call), _statistics(softmax_sum, rows, call)).unsqueeze(0)
        rules = piece.rules(q.size(2), k.size(2), part)
        *gradients, dbias, of_sink = attend_backward(_piece(dy, rows), q, k, v, _piece(out, rows), lse, rules)
        for grad, where, of_piece in zip(grads, (rows, columns, columns), gradients, strict=True):
            _piece(grad, where).copy_(of_piece)
        if dpse is not None and (of_pse := piece.pse_gradient(dbias)) is not None:
            dpse += of_pse
        if of_sink is not None:
            dsink += of_sink
    return *grads, dpse, dsink


def _pieces(call: AttentionCall, keep: Tensor | None) -> Iterator[tuple[slice, slice, AttentionCall, Tensor | None]]:
    """The sequences of layout TND that have queries and keys, each with its part of the dropout mask."""
    done = 0
    for rows, columns, piece in call.sequences():
        count = call.head_num * (rows.stop - rows.start) * (columns.stop - columns.start)
        if count:
            yield rows, columns, piece, None if keep is None else keep[done : done + count]
        done += count


def _piece(x: Tensor, rows: slice) -> Tensor:
    """One sequence of a (token, head, depth) tensor, as a batch of one."""
    return x[rows].transpose(0, 1).unsqueeze(0)


def _statistics(x: Tensor, rows: slice, call: AttentionCall) -> Tensor:
    """One sequence's (head, query, 8) in a (token, head, 8) tensor; unless asked, heads lie before tokens there."""
    if call.softmax_layout == "TND":
        return x[rows].transpose(0, 1)
    return x[rows].view(x.size(1), rows.stop - rows.start, x.size(2))


def _lse(top: Tensor, total: Tensor) -> Tensor:
    return top[..., 0] + total[..., 0].log()
