"""What CANN's operators accept."""

from __future__ import annotations

import pytest

from npukit.facts import aclnn
from npukit.facts.target import Target


@pytest.mark.parametrize("cann", ["8.0.RC3", "8.5.0", "9.0.0", "9.1.0", "9.9.0"])
def test_every_cann_refuses_products_in_double_precision(cann: str) -> None:
    limits = aclnn.limits(cann, Target.of().card)["aten::addmm"]
    assert limits and all("fp64" not in limit.types and {"fp16", "fp32"} <= {*limit.types} for limit in limits)


def test_nothing_is_claimed_of_cards_that_run_operators_another_way() -> None:
    assert not aclnn.limits("9.1.0", "910A") and not aclnn.limits("9.1.0", "310P3")


def test_what_training_needs_is_refused_nowhere() -> None:
    limits = aclnn.limits("9.1.0", "910B3")
    assert len(limits) > 400
    for op in ("addmm", "bmm", "gelu.out", "silu", "_softmax", "_log_softmax", "sigmoid", "native_batch_norm"):
        assert all({"bf16", "fp16", "fp32"} <= {*limit.types} for limit in limits[f"aten::{op}"]), op
