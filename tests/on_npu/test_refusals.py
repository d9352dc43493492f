"""With NPUKIT_SIM_REFUSALS=on the simulated NPU refuses what CANN does not document; test_on_npu.py sets it."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.skipif(os.environ.get("NPUKIT_SIM_REFUSALS") != "on", reason="refusals are off")
DOUBLE = torch.ones(3, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "function"),
    [
        (lambda x: x @ x, "aclnnMatmul"),
        (lambda x: F.linear(x, x, x[0]), "aclnnAddmm"),
        (lambda x: torch.bmm(x[None], x[None]), "aclnnBatchMatMul"),
        (F.gelu, "aclnnGelu"),
        (torch.erfinv, "aclnnErfinv"),
    ],
)
def test_double_precision_that_has_no_kernel_is_refused_with_canns_codes(call: object, function: str) -> None:
    with pytest.raises(RuntimeError, match=rf"call {function}\w* failed, error code is 161002") as refused:
        call(DOUBLE.npu())
    assert "EZ1001" in str(refused.value) and "DT_DOUBLE" in str(refused.value)


def test_double_precision_that_has_a_kernel_is_computed() -> None:
    x = DOUBLE.npu()
    assert (x + x).sum().item() == 18 and x.softmax(0).dtype == torch.float64


def test_a_number_beside_a_tensor_is_no_tensor_in_double_precision() -> None:
    x = torch.ones(3, device="npu")
    assert torch.clamp(x * 2.5, 0.5, 2.0).sum().item() == 6 and F.gelu(x * torch.tensor(2.0).double()).shape == (3,)


def test_more_than_eight_dimensions_are_refused() -> None:
    with pytest.raises(RuntimeError, match="error code is 161002"):
        torch.ones((1,) * 9).npu().relu()
    assert torch.ones((1,) * 8).npu().relu().item() == 1


def test_views_and_copies_of_any_type_are_possible() -> None:
    x = DOUBLE.npu()
    assert torch.equal(x[1:].t().contiguous().cpu(), DOUBLE[1:].t()) and x.to(torch.complex128).cpu().sum() == 9
