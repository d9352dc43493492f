"""The simulated rotary embeddings against complex multiplication, and their gradients against autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import rotary

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def turned(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    """Pairs of the last dimension as complex numbers, times cos + i sin of the first and of the second of a pair."""
    order = {
        "half": lambda y: y.unflatten(-1, (2, -1)).unbind(-2),
        "interleave": lambda y: y.unflatten(-1, (-1, 2)).unbind(-1),
        "quarter": lambda y: tuple(part.flatten(-2) for part in y.unflatten(-1, (2, 2, -1)).unbind(-2)),
    }[mode]
    a, b = order(x)
    (cos_a, cos_b), (sin_a, sin_b) = order(cos), order(sin)
    first, second = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    if mode == "interleave":
        return torch.stack((first, second), -1).flatten(-2)
    if mode == "half":
        return torch.cat((first, second), -1)
    return torch.stack((first.unflatten(-1, (2, -1)), second.unflatten(-1, (2, -1))), -2).flatten(-3)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mode", ["half", "interleave", "quarter"])
@pytest.mark.parametrize("small", [(2, 5, 1, 8), (1, 5, 1, 8), (2, 5, 3, 8)])
def test_rotary_mul_and_its_gradient(small: tuple[int, ...], mode: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, cos, sin = (torch.randn(shape).to(dtype).requires_grad_() for shape in ((2, 5, 3, 8), small, small))
    expected = turned(x.float(), cos.float(), sin.float(), mode)
    grad = torch.randn(2, 5, 3, 8).to(dtype)
    wanted = torch.autograd.grad(expected, (x, cos, sin), grad.float())
    given = [y.detach() for y in (x, cos, sin)]
    close = {"rtol": TOLERANCE[dtype], "atol": 5 * TOLERANCE[dtype]}
    torch.testing.assert_close(rotary.rotary_mul(*given, mode), expected.detach().to(dtype), **close)
    actual = rotary.rotary_mul_backward(grad, *given, mode)
    torch.testing.assert_close(actual, wanted, **close)
    shapes = rotary.rotary_mul_backward(grad.to("meta"), *(y.to("meta") for y in given), mode)
    assert [(y.shape, y.dtype) for y in shapes] == [(y.shape, y.dtype) for y in actual]


def test_rotation_by_a_matrix_is_the_rotation_it_holds() -> None:
    x, cos, sin = (torch.randn(3, 4, 8) for _ in range(3))
    matrix = torch.zeros(8, 8)
    matrix[:4, 4:], matrix[4:, :4] = torch.eye(4), -torch.eye(4)
    torch.testing.assert_close(rotary.rotary_mul(x, cos, sin, "half", matrix), rotary.rotary_mul(x, cos, sin))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_apply_rotary_pos_emb_writes_over_query_and_key(dtype: torch.dtype) -> None:
    query, key = torch.randn(2, 5, 4, 8).to(dtype), torch.randn(2, 5, 2, 8).to(dtype)
    cos, sin = torch.randn(2, 5, 1, 8).to(dtype), torch.randn(2, 5, 1, 8).to(dtype)
    wanted = [rotary.rotary_mul(x, cos, sin) for x in (query, key)]
    actual = rotary.apply_rotary_pos_emb(query, key, cos, sin)
    assert actual[0] is query and actual[1] is key
    torch.testing.assert_close(list(actual), wanted)


def test_interleave_rope_sorts_then_rotates() -> None:
    x, cos, sin = torch.randn(2, 3, 4, 8), torch.randn(2, 1, 4, 8), torch.randn(2, 1, 4, 8)
    sorted_x = x.unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(rotary.interleave_rope(x, cos, sin), rotary.rotary_mul(sorted_x, cos, sin))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("axes, cache_mode", [(None, "default"), (3, "default"), (4, "default"), (3, "interleave")])
def test_mrope(axes: int | None, cache_mode: str, mode: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sections = {None: [], 3: [2, 2, 2], 4: [1, 2, 1, 2]}[axes]
    cache, query, key = (
        torch.randn(50, 12).to(dtype),
        torch.randn(7, 4 * 16).to(dtype),
        torch.randn(7, 2 * 16).to(dtype),
    )
    positions = torch.randint(50, (7,) if axes is None else (axes, 7))
    owner = [0] * 6
    if axes is not None and cache_mode == "default":
        owner = [axis for axis, length in enumerate(sections) for _ in range(length)]
    elif axes is not None:
        owner = [depth % 3 for depth in range(6)]
    rows = positions.view(-1, 7)
    table = torch.stack(
        [cache[rows[axis], depth + 6 * half] for half in (0, 1) for depth, axis in enumerate(owner)], -1
    )
    double = torch.Tensor.repeat_interleave if mode == "interleave" else lambda x, n, _: x.repeat(1, n)
    cos, sin = (double(x, 2, -1).unsqueeze(1).float() for x in table.chunk(2, -1))
    arguments = {"mrope_section": sections or None, "rotary_mode": mode, "cache_mode": cache_mode}
    actual = rotary.mrope(positions, query, key, cache, 16, **arguments)
    for x, got in zip((query, key), actual, strict=True):
        heads = x.float().unflatten(-1, (-1, 16))
        wanted = torch.cat((turned(heads[..., :12], cos, sin, mode), heads[..., 12:]), -1).flatten(-2)
        torch.testing.assert_close(got, wanted.to(dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
