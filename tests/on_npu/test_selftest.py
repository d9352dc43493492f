"""The self-test's checks pass on a simulated NPU, and fail where an operator is wrong."""

from __future__ import annotations

import torch

from npukit.selftest.check import DeviceCheck
from npukit.selftest.groups import checks_of
from npukit.selftest.worker import outcome_of

DEVICE = torch.device("npu", 0)


def test_torch_npus_operators_give_the_results_that_ship() -> None:
    checks = [check for check in checks_of("operators", DEVICE) if check.dtype == torch.bfloat16]
    assert len(checks) > 60
    assert {check.name: line for check in checks if (line := outcome_of(check, DEVICE))["outcome"] != "passed"} == {}


def test_a_wrong_operator_is_found() -> None:
    check = next(iter(checks_of("operators", DEVICE)))
    wrong = DeviceCheck(
        check.name, lambda device: [1.01 * output for output in check.run(device)], check.key, check.dtype
    )
    assert outcome_of(wrong, DEVICE)["outcome"] == "failed"
