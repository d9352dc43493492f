"""LSTM and GRU, forward and backward: what torch_npu's layers of that name are made of.

Time comes first: [steps, batch, features]. Gates are joined in torch's order: i, f, j (candidate), o; and r, z, n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from npukit.simulate.ops.common import gradients, wide
from npukit.simulate.ops.registry import kernel


def _lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """(h, c, i, j, f, o, tanh(c)) after one step."""
    i, f, j, o = gates.chunk(4, -1)
    i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
    c = f * c + i * j
    return o * c.tanh(), c, i, j, f, o, c.tanh()


def _lstm(
    x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor, mask: Tensor | None, reverse: bool
) -> list[Tensor]:
    """[y, h, c, i, j, f, o, tanh(c)] of every step; where the mask is zero the state stands still and y is zero."""
    h, c = h.reshape(-1, h.shape[-1]), c.reshape(-1, c.shape[-1])
    steps: list[tuple[Tensor, ...]] = []
    order = range(x.shape[0] - 1, -1, -1) if reverse else range(x.shape[0])
    for t in order:
        new_h, new_c, *rest = _lstm_step(torch.cat((x[t], h), -1) @ weight + bias, c)
        inside = 1.0 if mask is None else mask[t].to(x.dtype)
        h, c = h + (new_h - h) * inside, c + (new_c - c) * inside
        steps.append((h * inside, h, c, *rest))
    return [torch.stack(of_step) for of_step in zip(*(reversed(steps) if reverse else steps), strict=True)]


def _lstm_backward(
    grads: tuple[Tensor | None, ...], inputs: list[Tensor], mask: Tensor | None, reverse: bool
) -> tuple[Tensor, ...]:
    """Gradients of (x, weight, bias, h, c) from those of (y, h, c), the layer being computed once more."""
    steps, batch = inputs[0].shape[:2]
    given = [torch.zeros(()) if g is None else wide(g) for g in grads]
    upstream = [g.to(inputs[0].device).expand(steps, batch, inputs[3].shape[-1]) for g in given]

    def forward(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
        return _lstm(x, weight, bias, h, c, mask, reverse)[:3]

    all_grads = gradients(forward, [wide(t) for t in inputs], upstream)
    return tuple(g.to(t.dtype) for g, t in zip(all_grads, inputs, strict=True))


@kernel("npu_lstm")
def lstm(
    x: Tensor, weight: Tensor, bias: Tensor, seq_mask: Tensor, h: Tensor, c: Tensor, has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool, flag_seq: bool,
    direction: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One layer, one direction, whatever num_layers says: (y, h, c, i, j, f, o, tanh(c)) of every step.

    The weight is [input + hidden, 4 * hidden]; with direction time runs backwards. There is no dropout.
    """
    mask = seq_mask if flag_seq else None
    return tuple(t.to(x.dtype) for t in _lstm(wide(x), wide(weight), wide(bias), wide(h), wide(c), mask, direction))


@kernel("npu_lstm_backward")
def lstm_backward(
    grady: Tensor | None, gradh: Tensor | None, gradc: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor,
    h: Tensor, c: Tensor, y_output: Tensor, h_output: Tensor, c_output: Tensor, i: Tensor, j: Tensor, f: Tensor,
    o: Tensor, tanhc: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, weight, bias, h and c; the mask is not passed on, so there must have been none."""
    return _lstm_backward((grady, gradh, gradc), [x, weight, bias, h, c], None, False)


@kernel("npu_lstm_data")
def lstm_data(
    x: Tensor, batch_sizes: Tensor, weight: Tensor, bias: Tensor, seq_mask: Tensor, h: Tensor, c: Tensor,
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    flag_seq: bool, direction: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """npu_lstm of a packed sequence, which torch_npu keeps padded."""
    return lstm(
        x, weight, bias, seq_mask, h, c, has_biases, num_layers, dropout, train, bidirectional, batch_first,
        flag_seq, direction,
    )  # fmt: skip


@kernel("npu_lstm_data_backward")
def lstm_data_backward(
    grady: Tensor | None, gradh: Tensor | None, gradc: Tensor | None, x: Tensor, batch_sizes: Tensor, weight: Tensor,
    bias: Tensor, h: Tensor, c: Tensor, y_output: Tensor, h_output: Tensor, c_output: Tensor, i: Tensor, j: Tensor,
    f: Tensor, o: Tensor, tanhc: Tensor, flag_direction: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, weight, bias, h and c of a packed sequence."""
    mask = (torch.arange(x.shape[1], device=x.device) < batch_sizes.to(x.device).unsqueeze(1)).unsqueeze(-1)
    return _lstm_backward((grady, gradh, gradc), [x, weight, bias, h, c], mask, flag_direction)


@kernel("npu_lstm_cell")
def lstm_cell(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, ...]:
    """One step with [features, 4 * hidden] weights: (y, h, c, i, j, f, o, tanh(c)), all but h and c as one step."""
    gates = wide(x) @ wide(w_ih) + wide(h) @ wide(w_hh)
    for bias in (b_ih, b_hh):
        gates = gates if bias is None else gates + wide(bias)
    new_h, new_c, *rest = (t.to(x.dtype) for t in _lstm_step(gates, wide(c)))
    return new_h.unsqueeze(0), new_h.clone(), new_c, *(t.unsqueeze(0) for t in rest)


def _lstm_gates_backward(
    dh: Tensor, dc: Tensor, c: Tensor, gates: tuple[Tensor, Tensor, Tensor, Tensor], tanhc: Tensor
) -> tuple[Tensor, Tensor]:
    """(gradient of the joined gates before their activations, gradient of the previous c)."""
    i, f, j, o = gates
    dc = dc + dh * o * (1 - tanhc * tanhc)
    parts = (dc * j * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - j * j), dh * tanhc * o * (1 - o))
    return torch.cat(parts, -1), dc * f


@kernel("npu_lstm_cell_backward")
def lstm_cell_backward(
    grady: Tensor | None, gradh: Tensor | None, gradc: Tensor | None, x: Tensor, w_ih: Tensor, w_hh: Tensor,
    h: Tensor, c: Tensor, y_output: Tensor, h_output: Tensor, c_output: Tensor, i: Tensor, j: Tensor, f: Tensor,
    o: Tensor, tanhc: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, both weights, both biases, h and c."""
    zero = torch.zeros_like(wide(h))
    dh = (zero if grady is None else wide(grady).squeeze(0)) + (zero if gradh is None else wide(gradh))
    dc = zero if gradc is None else wide(gradc)
    kept = tuple(wide(t).squeeze(0) for t in (i, f, j, o))
    dgates, dc = _lstm_gates_backward(dh, dc, wide(c), (kept[0], kept[1], kept[2], kept[3]), wide(tanhc).squeeze(0))
    dbias = dgates.sum(0)
    grads = (dgates @ wide(w_ih).T, wide(x).T @ dgates, wide(h).T @ dgates, dbias, dbias, dgates @ wide(w_hh).T, dc)
    return tuple(g.to(x.dtype, copy=True) for g in grads)


def _gru(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> list[Tensor]:
    """[h, z, r, n, n's part of the hidden state] of every step; the reset gate acts after the product."""
    h = h.reshape(-1, h.shape[-1])
    steps: list[tuple[Tensor, ...]] = []
    for inputs in x @ w_ih + b_ih:
        xr, xz, xn = inputs.chunk(3, -1)
        hr, hz, hn = (h @ w_hh + b_hh).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        h = (1 - z) * n + z * h
        steps.append((h, z, r, n, hn))
    return [torch.stack(of_step) for of_step in zip(*steps, strict=True)]


@kernel("npu_gru")
def gru(
    x: Tensor, hx: Tensor, weight_input: Tensor, weight_hidden: Tensor, bias_input: Tensor, bias_hidden: Tensor,
    seq_length: Tensor, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One layer, one direction: (y, h, update, reset, new, hidden_new) of every step; y and h are the same."""
    inputs = (x, hx, weight_input, weight_hidden, bias_input, bias_hidden)
    h, z, r, n, hn = (t.to(bias_input.dtype) for t in _gru(*(wide(t) for t in inputs)))
    return h, h.clone(), z, r, n, hn


@kernel("npu_gru_backward")
def gru_backward(
    grady: Tensor | None, gradh: Tensor | None, x: Tensor, weight_input: Tensor, weight_hidden: Tensor,
    bias_input: Tensor, bias_hidden: Tensor, seq_length: Tensor, hx: Tensor, y_output: Tensor, h_output: Tensor,
    output_updata: Tensor, output_reset: Tensor, output_new: Tensor, hidden_new: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients in the order weight_input, weight_hidden, x, bias_input, bias_hidden, hx."""
    inputs = (x, hx, weight_input, weight_hidden, bias_input, bias_hidden)
    upstream = torch.zeros_like(wide(y_output))
    for grad in (grady, gradh):
        upstream = upstream if grad is None else upstream + wide(grad)
    dx, dh, dw_ih, dw_hh, db_ih, db_hh = (
        g.to(x.dtype) for g in gradients(lambda *a: _gru(*a)[0], [wide(t) for t in inputs], upstream)
    )
    return dw_ih, dw_hh, dx, db_ih, db_hh, dh


@kernel("aten::_thnn_fused_lstm_cell")
def fused_lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(h, c, the activated gates side by side) of one step."""
    gates = wide(input_gates) + wide(hidden_gates)
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + wide(bias)
    h, c, i, j, f, o, _ = _lstm_step(gates, wide(cx))
    return h.to(cx.dtype), c.to(cx.dtype), torch.cat((i, f, j, o), -1).to(cx.dtype)


@kernel("aten::_thnn_fused_lstm_cell_backward_impl")
def fused_lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(gradient of the gates, of c, of the bias)."""
    zero = torch.zeros_like(wide(cx))
    dh, dc = zero if grad_hy is None else wide(grad_hy), zero if grad_cy is None else wide(grad_cy)
    i, f, j, o = wide(workspace).chunk(4, -1)
    dgates, dc = _lstm_gates_backward(dh, dc, wide(cx), (i, f, j, o), wide(cy).tanh())
    return dgates.to(workspace.dtype), dc.to(cx.dtype), dgates.sum(0).to(cx.dtype)
