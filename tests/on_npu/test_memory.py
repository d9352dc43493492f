"""NPU tensors that share memory or change their size, seen through operators."""

from __future__ import annotations

import pytest
import torch


def test_tensors_that_overlap_are_refused() -> None:
    x = torch.arange(6.0).npu()
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.add(x[:-1], 1, out=x[1:])


def test_the_same_tensor_twice_is_one() -> None:
    x = torch.arange(3.0).npu()
    assert torch.add(x, x, out=x) is x
    assert x.tolist() == [0, 2, 4]


def test_lists_of_outputs_are_resized() -> None:
    outs = [torch.empty(0).npu(), torch.empty(0).npu()]
    torch.split_with_sizes_copy(torch.arange(6.0).npu(), [2, 4], out=outs)
    assert [out.tolist() for out in outs] == [[0, 1], [2, 3, 4, 5]]
