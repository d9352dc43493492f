"""Losses found in what programs print."""

from __future__ import annotations

import math

import pytest

from npukit.verify.losses import losses_in


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step   3  loss 1.105710", [("loss", 1.10571, 3)]),
        ("Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300039", [("loss", 2.300039, None)]),
        ("iter 40: loss 3.5e-2, time 30.1ms, mfu -100.00%", [("loss", 0.035, 40)]),
        ("step 0: train loss 4.1, val loss 4.25", [("train loss", 4.1, 0), ("val loss", 4.25, 0)]),
        ("{'loss': 0.5, 'epoch': 2}", [("loss", 0.5, None)]),
        ('{"step": 7, "train/loss": 0.25, "lr": 0.1}', [("train/loss", 0.25, 7)]),
        ("Epoch: [0][ 1/20]  Loss 6.9e+00 (6.8e+00)", [("loss", 6.9, None)]),
        ("[3/5] Loss_D: 1.5 Loss_G: 2.5", [("loss_d", 1.5, None), ("loss_g", 2.5, None)]),
        ("| loss     | 0.995    |", [("loss", 0.995, None)]),
        ("loss=nan", [("loss", math.nan, None)]),
        ('{"step": 2, "train": {"loss": 0.5, "lr": 0.1}}', [("train/loss", 0.5, 2)]),
        ('  "loss_scaling": 1,', []),
        ('{"loss_kwargs": {"loss_scale": 1.0}}', []),
        ("the loss of data", []),
        ("diffloss_d=3,", []),
        ("[00:01] Namespace(lr=0.1, contrastive_loss=2, device='cuda')", []),
        ("weightless 5", []),
        ("lossless 3", []),
        ("\r 10%|#  | loss=0.5, 3.1it/s", []),
    ],
)
def test_losses_of_a_line(line: str, expected: list[tuple[str, float, int | None]]) -> None:
    losses = [(loss.name, loss.value, loss.step) for loss in losses_in([line])]
    assert str(losses) == str(expected)
