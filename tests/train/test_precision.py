"""In which number format a run computes, and why."""

from __future__ import annotations

import pytest
import torch

from npukit.errors import NpukitError
from npukit.train.options import TrainOptions
from npukit.train.precision import Precision, choose_precision

CPU, NPU = torch.device("cpu"), torch.device("cuda")  # a device type that every torch knows stands for a card


@pytest.mark.parametrize(
    ("wanted", "device", "has_bf16", "expected"),
    [
        ("auto", CPU, True, Precision("fp32", "cpu")),
        ("auto", NPU, True, Precision("bf16", "has bf16")),
        ("auto", NPU, False, Precision("fp16", "no bf16")),
        ("fp32", NPU, True, Precision("fp32", "asked")),
        ("bf16", CPU, True, Precision("bf16", "asked")),
        ("bf16", CPU, False, Precision("bf16", "slow")),
    ],
)
def test_what_is_chosen_and_why(
    wanted: str, device: torch.device, has_bf16: bool, expected: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npukit.train.precision.has_bf16", lambda device: has_bf16)
    choice = choose_precision(TrainOptions.model_validate({"precision": wanted}), device)
    assert choice == expected and choice.name in str(choice)


def test_bf16_on_a_device_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npukit.train.precision.has_bf16", lambda device: False)
    with pytest.raises(NpukitError, match="bf16"):
        choose_precision(TrainOptions(precision="bf16"), NPU)
