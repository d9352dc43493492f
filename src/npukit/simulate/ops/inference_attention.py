"""The attention of inference: prompt, incremental and both in one, with keys in one piece or in pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import inference_limits as limits
from .attention_core import Rules, attend
from .attention_layout import RAGGED, dense, spans, undense
from .attention_mask import pattern
from .registry import kernel

_FIELDS = {
    "num_heads": "heads",
    "num_query_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "scale": "scale",
    "scale_value": "scale",
    "softmax_scale": "scale",
    "input_layout": "layout",
    "atten_mask": "mask",
    "pse_shift": "bias",
    "actual_seq_lengths": "q_lengths",
    "actual_seq_qlen": "q_lengths",
    "actual_seq_lengths_kv": "kv_lengths",
    "actual_seq_kvlen": "kv_lengths",
    "block_table": "block_table",
    "sparse_mode": "mode",
    "pre_tokens": "before",
    "next_tokens": "after",
    "learnable_sink": "sink",
    "query_rope": "query_rope",
    "key_rope": "key_rope",
    "inner_precise": "inner_precise",
}
_WITHOUT_EFFECT = ("padding_mask", "key_rope_antiquant_scale")


@dataclass(frozen=True)
class _Call:
    """What the inference ops share. Lengths are running totals where sequences lie end to end, else one a batch."""

    heads: int = 1
    kv_heads: int = 0
    scale: float = 1.0
    layout: str = "BSH"
    mask: Tensor | None = None
    bias: Tensor | None = None
    q_lengths: Sequence[int] | None = None
    kv_lengths: Sequence[int] | None = None
    block_table: Tensor | None = None
    mode: int = 0
    before: int = 2147483647
    after: int = 2147483647
    sink: Tensor | None = None
    query_rope: Tensor | None = None
    key_rope: Tensor | None = None
    inner_precise: int = 0  # its lowest bit: faster, and less exact with fp16

    @classmethod
    def of(cls, op: str, arguments: dict[str, Any]) -> _Call:
        """From an op's arguments; one that changes the result and is not simulated is refused, not ignored."""
        for name, given in arguments.items():
            if isinstance(given, Tensor) and name not in _FIELDS and name not in _WITHOUT_EFFECT:
                raise NotImplementedError(f"The simulated {op} does not compute with {name}; leave it out.")
        return cls(**{_FIELDS[name]: given for name, given in arguments.items() if name in _FIELDS})

    @property
    def ragged(self) -> bool:
        return self.layout.split("_")[0] in RAGGED

    def rules(self, batch: int, queries: int, keys: int, dtype: torch.dtype) -> Rules:
        """The rules of one piece, which is batch `batch`, or all of them if that is -1."""
        in_half = dtype == torch.half and queries > 1 and self.inner_precise % 2 == 1
        mask, mode = self.mask, self.mode
        if queries == 1 and not self.ragged and self.query_rope is None:  # a single query sees all keys but masked ones
            mask, mode = (None if mode in (2, 3, 4) else mask), 1
            mask = mask if mask is None or mask.dim() != 2 else mask.unsqueeze(1)
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        seen = pattern(_of_batch(mask, batch), mode, self.before, self.after, queries, keys)
        bias = _of_batch(self.bias, batch)
        bias = None if bias is None else bias[..., :queries, :keys].float()
        return Rules(self.scale, seen, bias, self.sink, in_half=in_half)

    def pieces(self, q: Tensor, k: Tensor) -> Iterator[tuple[int, slice, slice]]:
        """Batch, queries and keys of what can be computed at once; batch -1 is all of them."""
        if self.ragged:
            keys = _lengths(self.kv_lengths) if self.block_table is not None else spans(self.kv_lengths)
            for batch, (rows, columns) in enumerate(zip(spans(self.q_lengths), keys, strict=True)):
                yield batch, rows, columns
        elif self.q_lengths is None and self.kv_lengths is None:
            yield -1, slice(0, q.size(2)), slice(0, k.size(2))
        else:
            rows_of, columns_of = (
                _lengths(lengths or [x.size(2)], q.size(0))
                for lengths, x in ((self.q_lengths, q), (self.kv_lengths, k))
            )
            yield from zip(range(q.size(0)), rows_of, columns_of, strict=True)

    def keys(self, cache: Tensor, batch: int, columns: slice) -> Tensor:
        """Keys or values of one piece, (batch, head, key, depth), put together from pages where there are pages."""
        if self.block_table is None:
            whole = cache if batch < 0 or self.ragged else cache[batch : batch + 1]
            return whole[:, :, columns]
        page = cache.size(1) if cache.dim() == 3 else cache.size(-2)
        pages = cache[self.block_table[batch, : -(-columns.stop // page)].long()]
        match pages.dim():
            case 3:  # page, key, all heads
                rows = pages.flatten(0, 1).unflatten(-1, (self.kv_heads or self.heads, -1)).transpose(0, 1)
            case 4:  # page, head, key, depth
                rows = pages.transpose(0, 1).flatten(1, 2)
            case _:  # page, head, sixteenth of depth, key, 16
                rows = pages.permute(1, 0, 3, 2, 4).flatten(1, 2).flatten(2)
        return rows.unsqueeze(0)[:, :, columns]


def _of_batch(x: Tensor | None, batch: int) -> Tensor | None:
    return x[batch : batch + 1] if x is not None and batch >= 0 and x.dim() == 4 and x.size(0) > 1 else x


def _lengths(lengths: Sequence[int] | None, batches: int | None = None) -> list[slice]:
    """From the start each; one length serves all batches."""
    given = list(lengths or ())
    if batches is not None:
        given = given * batches if len(given) == 1 else given[:batches]
    return [slice(0, length) for length in given]


def _depth(value: Tensor, heads: int) -> int:
    """The depth of one head of values, in a dense tensor or in pages."""
    match value.dim():
        case 3:
            return value.size(2) // heads
        case 4:
            return value.size(3)
    return value.size(2) * value.size(4)


def _infer(query: Tensor, key: Tensor, value: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
    """The output, and the log-sum-exp of every row of scores: (batch, head, query, 1), or (token, head, 1)."""
    in_layout, _, out_layout = call.layout.partition("_")
    q = dense(query, in_layout, call.heads)
    kv_heads = call.kv_heads or call.heads
    if call.block_table is None:
        key, value = (dense(x, in_layout, kv_heads) for x in (key, value))
    out = q.new_zeros((*q.shape[:3], _depth(value, kv_heads)))
    lse = q.new_zeros(q.shape[:3], dtype=torch.float32)
    k_rope = call.key_rope
    if call.query_rope is not None and k_rope is not None:
        q = torch.cat((q, dense(call.query_rope, in_layout, call.heads)), -1)
        k_rope = k_rope if call.block_table is not None else dense(k_rope, in_layout, kv_heads)
    for batch, rows, columns in call.pieces(q, key) if not query.is_meta else ():
        where = slice(None) if batch < 0 or call.ragged else slice(batch, batch + 1)
        k, v = (call.keys(x, batch, columns) for x in (key, value))
        if k_rope is not None:
            k = torch.cat((k, call.keys(k_rope, batch, columns)), -1)
        piece = q[where, :, rows]
        attended, top, total = attend(piece, k, v, call.rules(batch, piece.size(2), k.size(2), q.dtype))
        out[where, :, rows] = attended
        lse[where, :, rows] = top + total.log()
    lse = lse[0].T if call.ragged else lse
    return undense(out, out_layout or in_layout), lse.unsqueeze(-1).contiguous()


@kernel("npu_prompt_flash_attention")
def prompt_flash_attention(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:
    """softmax(scale q k^T + pse_shift, masked) v; scale is 1 unless given, and queries past their length give zeros.

    Sparse modes 10 to 14 are 0 to 4 in higher precision. Without a mask, next_tokens (0 unless given) hides nothing.
    """
    mode = kwargs.get("sparse_mode", 0)
    arguments = {"next_tokens": 0} | kwargs | {"sparse_mode": mode % 10, "inner_precise": int(mode < 10)}
    return _infer(query, key, value, _Call.of("npu_prompt_flash_attention", arguments))[0]


@kernel("npu_incre_flash_attention")
def incre_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, actual_seq_lengths: Sequence[int] | None = None, **kwargs: Any
) -> Tensor:
    """Attention of one new query a batch over the keys so far, of which actual_seq_lengths count, maybe in pages."""
    arguments = kwargs | {"actual_seq_lengths_kv": actual_seq_lengths}
    return _infer(query, key, value, _Call.of("npu_incre_flash_attention", arguments))[0]


def _refuse_what_cann_refuses(query: Tensor, key: Tensor, call: _Call, block_size: int) -> None:
    layout = call.layout.partition("_")[0]
    q = dense(query, layout, call.heads)
    limits.check_heads(call.heads, call.kv_heads or call.heads, q.size(-1), q.element_size())
    if call.query_rope is not None:
        rotated = dense(call.query_rope, layout, call.heads).size(-1)
        is_paged = call.block_table is not None
        limits.check_rotary_parts(call.heads, call.kv_heads or call.heads, q.size(-1), rotated, is_paged)
    if call.ragged or call.query_rope is not None or q.size(2) > 1:
        limits.check_mask(call.mask, call.mode)
    if call.ragged:
        limits.check_totals(call.q_lengths, q.size(2))
    if call.block_table is not None:
        limits.check_pages(call.block_table, key, block_size, call.kv_lengths, call.layout, q.size(2))
    elif call.ragged:
        limits.check_totals(call.kv_lengths, dense(key, layout, call.kv_heads or call.heads).size(2))


@kernel("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")
def fused_infer_attention_score(
    query: Tensor, key: Tensor, value: Tensor, *, block_size: int = 0, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Both of the above, and on demand the log-sum-exp; BNSD_BSND and the like name another layout for the output.

    With pages the lengths of keys are one a batch even where those of queries are running totals. Version 2 has other
    names, and a learnable sink: one more score a head, that leads nowhere.
    """
    call = _Call.of("npu_fused_infer_attention_score", kwargs)
    _refuse_what_cann_refuses(query, key, call, block_size)
    out, lse = _infer(query, key, value, call)
    wanted = kwargs.get("softmax_lse_flag") or kwargs.get("return_softmax_lse")
    return out, lse if wanted else lse.new_empty(0)


@kernel("npu_fused_infer_attention_score.out", "npu_fused_infer_attention_score_v2.out")
def fused_infer_attention_score_out(
    query: Tensor, key: Tensor, value: Tensor, *, out: Sequence[Tensor], workspace: Tensor | None = None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Into given tensors; no workspace is needed."""
    attention, lse = fused_infer_attention_score(query, key, value, **kwargs)
    if lse.numel():
        out[1].copy_(lse)
    return out[0].copy_(attention), out[1]


@kernel("_npu_fused_infer_attention_score_infer_output", "_npu_fused_infer_attention_score_v2_infer_output")
def infer_output(query: Tensor, value: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Tensors for the results, not filled."""
    call = _Call.of("npu_fused_infer_attention_score", kwargs | {"block_table": None})
    layout = call.layout.partition("_")[0]
    kv_heads = call.kv_heads or call.heads
    depth = _depth(value if kwargs.get("block_table") is not None else dense(value, layout, kv_heads), kv_heads)
    q = dense(query, layout, call.heads).to("meta")
    out = undense(q.new_empty(*q.shape[:3], depth), call.layout.partition("_")[2] or layout)
    wanted = kwargs.get("softmax_lse_flag") or kwargs.get("return_softmax_lse")
    lse = (q.size(2), q.size(1), 1) if call.ragged else (*q.shape[:3], 1)
    return query.new_empty(out.shape), query.new_empty(lse if wanted else 0, dtype=torch.float32)


@kernel("_npu_fused_infer_attention_score_get_max_workspace", "_npu_fused_infer_attention_score_v2_get_max_workspace")
def get_max_workspace(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:
    """The memory that the op wants beside its results: none here."""
    return query.new_empty(0, dtype=torch.uint8)
