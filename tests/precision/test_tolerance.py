"""How far apart two tensors are, from what a dump keeps of them."""

from __future__ import annotations

import math

import pytest
import torch

from npukit.precision.dump import Value
from npukit.precision.recording.batch import statistics_of
from npukit.precision.tolerance import ceiling, error


def value(tensor: torch.Tensor, sketch: bool = True) -> Value:
    kept = statistics_of(tensor)
    figures = {"minimum": kept.minimum, "maximum": kept.maximum, "mean": kept.mean, "norm": kept.norm}
    counts = {"nan": kept.nan, "inf": kept.inf, "hash": kept.hash, "sketch": kept.sketch if sketch else ()}
    return Value(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), **figures, **counts)


def test_a_sketch_tells_how_far_tensors_are_apart() -> None:
    """The relative L2 distance, estimated from a sketch; without one never more than the distance itself."""
    torch.manual_seed(0)
    for size in (1e-1, 1e-3, 1e-5):
        left = torch.randn(64, 64)
        right = left + size * torch.randn(64, 64)
        exact = float((left - right).norm() / max(left.norm(), right.norm()))
        assert error(value(left), value(right)) == pytest.approx(exact, rel=0.5)
        assert (error(value(left, sketch=False), value(right, sketch=False)) or 0.0) <= exact * 1.01


def test_equal_bits_are_no_error_and_one_other_bit_is_one() -> None:
    left = torch.randn(8, 8)
    right = left.clone()
    assert error(value(left), value(right)) == 0.0
    right[3, 3] = torch.nextafter(right[3, 3], torch.tensor(9.0))
    assert (error(value(left), value(right)) or 0.0) > 0.0


@pytest.mark.parametrize("other", [torch.ones(2, 3), torch.ones(3, 2).int(), torch.full((3, 2), float("nan"))])
def test_another_shape_kind_or_nan_is_beyond_every_tolerance(other: torch.Tensor) -> None:
    assert error(value(torch.ones(3, 2)), value(other)) == math.inf


def test_the_coarsest_type_sets_the_tolerance() -> None:
    fp32, bf16 = value(torch.ones(2)), value(torch.ones(2).bfloat16())
    assert ceiling([fp32]) < ceiling([fp32, bf16]) == ceiling([bf16])
