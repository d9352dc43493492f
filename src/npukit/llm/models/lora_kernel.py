"""The gated layer between LoRA's products as two CUDA kernels, forward and backward, that read wide tensors once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows and columns per block, the number of parts of a program's loop, its warps and its stages.
FORWARD = (64, 64, 8, 4, 3)
BACKWARD = (64, 64, 8, 4, 1)


def gated(gate: Tensor, up: Tensor, narrow: Tensor, of_gate: Tensor, of_up: Tensor, down: Tensor) -> list[Tensor]:
    """npukit.llm.models.lora.gated on CUDA."""
    block_rows, block_columns, parts, warps, stages = FORWARD
    rows, columns = gate.shape
    hidden = torch.empty_like(gate)
    sums = gate.new_empty((parts, rows, down.shape[1]), dtype=torch.float32)
    share = triton.cdiv(triton.cdiv(columns, parts), block_columns) * block_columns
    _forward[triton.cdiv(rows, block_rows), parts](
        gate,
        up,
        narrow,
        of_gate,
        of_up,
        down,
        hidden,
        sums,
        rows,
        columns,
        share,
        RANK=narrow.shape[1],
        DOWN=down.shape[1],
        ROWS=block_rows,
        COLUMNS=block_columns,
        num_warps=warps,
        num_stages=stages,
    )
    return [hidden, sums.sum(0)]


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    gate,
    up,
    narrow,
    of_gate,
    of_up,
    down,
    hidden,
    sums,
    rows,
    columns,
    share,
    RANK: tl.constexpr,
    DOWN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    block, part = tl.program_id(0), tl.program_id(1)
    row, rank, down_rank = block * ROWS + tl.arange(0, ROWS), tl.arange(0, RANK), tl.arange(0, DOWN)
    is_row = row[:, None] < rows
    first = block * ROWS * columns.to(tl.int64)  # offsets within a block have 32 bits, which halves the registers
    gate, up, hidden = gate + first, up + first, hidden + first
    own = tl.load(narrow + row[:, None] * RANK + rank[None, :], mask=is_row, other=0.0)
    total = tl.zeros((ROWS, DOWN), dtype=tl.float32)
    for start in range(part * share, tl.minimum((part + 1) * share, columns), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_column = column[:, None] < columns
        place = tl.arange(0, ROWS)[:, None] * columns + column[None, :]
        is_there = is_row & (column[None, :] < columns)
        to_gate = tl.load(of_gate + column[:, None] * RANK + rank[None, :], mask=is_column, other=0.0)
        to_up = tl.load(of_up + column[:, None] * RANK + rank[None, :], mask=is_column, other=0.0)
        opened = tl.load(gate + place, mask=is_there, other=0.0).to(tl.float32) + tl.dot(own, tl.trans(to_gate))
        raised = tl.load(up + place, mask=is_there, other=0.0).to(tl.float32) + tl.dot(own, tl.trans(to_up))
        made = (opened * tl.sigmoid(opened) * raised).to(own.dtype)
        tl.store(hidden + place, made, mask=is_there)
        total = tl.dot(
            made, tl.load(down + column[:, None] * DOWN + down_rank[None, :], mask=is_column, other=0.0), total
        )
    tl.store(sums + (part * rows + row[:, None]) * DOWN + down_rank[None, :], total, mask=is_row)


def gated_backward(
    gradient: Tensor,
    of_down: Tensor,
    gate: Tensor,
    up: Tensor,
    narrow: Tensor,
    of_gate: Tensor,
    of_up: Tensor,
    down: Tensor,
) -> list[Tensor]:
    """npukit.llm.models.lora.gated_backward on CUDA."""
    block_rows, block_columns, parts, warps, stages = BACKWARD
    (rows, columns), rank, down_rank = gate.shape, narrow.shape[1], down.shape[1]
    blocks = triton.cdiv(columns, block_columns)
    gradients = torch.empty_like(gate), torch.empty_like(up)
    of_narrow = gate.new_empty((blocks, rows, rank), dtype=torch.float32)
    of_weights = [gate.new_empty((parts, columns, width), dtype=torch.float32) for width in (rank, rank, down_rank)]
    _backward[blocks, parts](
        gradient,
        of_down,
        gate,
        up,
        narrow,
        of_gate,
        of_up,
        down,
        *gradients,
        of_narrow,
        *of_weights,
        rows,
        columns,
        triton.cdiv(triton.cdiv(rows, parts), block_rows) * block_rows,
        RANK=rank,
        DOWN=down_rank,
        ROWS=block_rows,
        COLUMNS=block_columns,
        num_warps=warps,
        num_stages=stages,
    )
    return [*gradients, of_narrow.sum(0), *(part.sum(0) for part in of_weights)]


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    gradient,
    of_down,
    gate,
    up,
    narrow,
    of_gate,
    of_up,
    down,
    gate_gradient,
    up_gradient,
    of_narrow,
    gate_sums,
    up_sums,
    down_sums,
    rows,
    columns,
    share,
    RANK: tl.constexpr,
    DOWN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    block, part = tl.program_id(0), tl.program_id(1)
    column, rank, down_rank = block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, RANK), tl.arange(0, DOWN)
    is_column = column[:, None] < columns
    to_gate = tl.load(of_gate + column[:, None] * RANK + rank[None, :], mask=is_column, other=0.0)
    to_up = tl.load(of_up + column[:, None] * RANK + rank[None, :], mask=is_column, other=0.0)
    to_down = tl.load(down + column[:, None] * DOWN + down_rank[None, :], mask=is_column, other=0.0)
    gate_total = tl.zeros((COLUMNS, RANK), dtype=tl.float32)
    up_total = tl.zeros((COLUMNS, RANK), dtype=tl.float32)
    down_total = tl.zeros((COLUMNS, DOWN), dtype=tl.float32)
    for start in range(part * share, tl.minimum((part + 1) * share, rows), ROWS):
        row, first = start + tl.arange(0, ROWS), start * columns.to(tl.int64)
        is_row = row[:, None] < rows
        place = tl.arange(0, ROWS)[:, None] * columns + column[None, :]
        is_there = is_row & (column[None, :] < columns)
        own = tl.load(narrow + row[:, None] * RANK + rank[None, :], mask=is_row, other=0.0)
        own_down = tl.load(of_down + row[:, None] * DOWN + down_rank[None, :], mask=is_row, other=0.0)
        opened = tl.load(gate + first + place, mask=is_there, other=0.0).to(tl.float32) + tl.dot(own, tl.trans(to_gate))
        raised = tl.load(up + first + place, mask=is_there, other=0.0).to(tl.float32) + tl.dot(own, tl.trans(to_up))
        slope = tl.load(gradient + first + place, mask=is_there, other=0.0).to(tl.float32)
        slope += tl.dot(own_down, tl.trans(to_down))
        share_open = tl.sigmoid(opened)
        active = opened * share_open
        made = (active * raised).to(own.dtype)
        of_raised = (slope * active).to(own.dtype)
        of_opened = (slope * raised * share_open * (1 + opened - active)).to(own.dtype)
        tl.store(gate_gradient + first + place, of_opened, mask=is_there)
        tl.store(up_gradient + first + place, of_raised, mask=is_there)
        down_total = tl.dot(tl.trans(made), own_down, down_total)
        gate_total = tl.dot(tl.trans(of_opened), own, gate_total)
        up_total = tl.dot(tl.trans(of_raised), own, up_total)
        of_row = tl.dot(of_raised, to_up, tl.dot(of_opened, to_gate))
        place = of_narrow + (block.to(tl.int64) * rows + row[:, None]) * RANK + rank[None, :]
        tl.store(place, of_row, mask=is_row)
    at = (part * columns + column[:, None]) * RANK + rank[None, :]
    tl.store(gate_sums + at, gate_total, mask=is_column)
    tl.store(up_sums + at, up_total, mask=is_column)
    at = (part * columns + column[:, None]) * DOWN + down_rank[None, :]
    tl.store(down_sums + at, down_total, mask=is_column)
