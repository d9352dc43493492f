"""Feature-value detection: faults in gradients are found, ordinary training is left in peace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.precision.features import FeatureDetector
from npukit.train.options import FeatureDetection

Fault = Callable[[int, Tensor], Tensor]
STEPS = 40


def train(
    fault: Fault | None = None, dtype: torch.dtype = torch.float32, passes: int = 1, stop: bool = False
) -> list[str]:
    """Train a small model, with a fault in the gradient of its second layer; what the detector said."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    now = 0
    if fault:
        model[2].weight.register_hook(lambda gradient: fault(now, gradient.clone()))
    detector = FeatureDetector(model, dtype, stop=stop)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for now in range(1, STEPS + 1):
        for _ in range(passes):
            x = torch.randn(8, 32)
            if now % 7 == 0:
                x[0] *= 10  # an odd row
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                loss = nn.functional.cross_entropy(model(x).float(), x[:, :10].argmax(1))
            scaler.scale(loss).backward()
        detector.check(now, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return detector.read()


def element(step: int, times: float) -> Fault:
    """One element becomes so many times the largest."""

    def fault(now: int, gradient: Tensor) -> Tensor:
        if now == step:
            gradient[5, 7] = gradient.abs().max() * times
        return gradient

    return fault


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ordinary_training_is_left_in_peace(dtype: torch.dtype) -> None:
    """In fp16 the scale of 65536 is too large at first: Inf is usual there."""
    assert train(dtype=dtype) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("step", [1, 2, 9, 35])
def test_an_element_ten_times_too_large(step: int, dtype: torch.dtype) -> None:
    anomalies = train(element(step, 10), dtype)
    assert len(anomalies) == 1, anomalies
    assert f"step {step}, rank 0: one element of the gradient of 2.weight is" in anomalies[0]
    assert "10 times the next largest" in anomalies[0]


def test_an_element_among_zeros() -> None:
    """The gradient of an embedding is 0 for tokens that did not come; a fault there is found as anywhere."""
    model = nn.Embedding(64, 16)
    steps = 0

    def fault(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        if steps == 9:
            gradient[63, 3] = gradient.abs().max() * 10
        return gradient

    model.weight.register_hook(fault)
    detector = FeatureDetector(model, torch.float32)
    for steps in range(1, 12):
        model(torch.randint(32, (8,))).square().sum().backward()
        detector.check(steps)
        model.zero_grad()
    anomalies = detector.read()
    assert len(anomalies) == 1 and "step 9" in anomalies[0]


def test_values_are_told_without_the_scale_of_fp16() -> None:
    value = [
        float(train(element(20, 1000), dtype)[0].split(" is ")[1].split()[0])
        for dtype in (torch.float32, torch.float16)
    ]
    assert value[0] == pytest.approx(value[1], rel=0.2)


def test_a_whole_gradient_that_jumps_and_one_that_stays() -> None:
    anomalies = train(lambda now, gradient: gradient * (1000 if now == 20 else 1))
    assert len(anomalies) == 1 and "step 20" in anomalies[0] and "the gradient of 2.weight reached" in anomalies[0]
    stays = train(lambda now, gradient: gradient * (1000 if now >= 20 else 1))
    assert 1 <= len(stays) <= 20 and "step 40" not in stays[-1]  # usual in the end


def test_the_second_fault_is_found_like_the_first() -> None:
    faults = [element(step, 12) for step in (1, 6, 7, 30)]

    def all_of_them(now: int, gradient: Tensor) -> Tensor:
        for fault in faults:
            gradient = fault(now, gradient)
        return gradient

    assert [sentence.split("step ")[1].split(",")[0] for sentence in train(all_of_them)] == ["1", "6", "7", "30"]


def test_gradients_that_rise_together_must_rise_far() -> None:
    """An odd batch makes all gradients larger: ten times is nothing, a thousand times is."""

    def loss_times(factor: float) -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        detector = FeatureDetector(model, torch.float32)
        for step in range(1, 20):
            loss = (model(torch.randn(16, 8)) - 1).square().mean()
            (loss * (factor if step == 15 else 1)).backward()
            detector.check(step)
        return detector.read()

    assert loss_times(10) == []
    assert "all gradients rose together" in loss_times(1000)[0]


def test_nan_is_an_anomaly_where_no_scaler_skips_it() -> None:
    anomalies = train(lambda now, gradient: gradient * (float("nan") if now == 12 else 1))
    assert "step 12" in anomalies[0] and "2.weight holds NaN or Inf" in anomalies[0]


def test_every_backward_of_an_accumulated_step_is_seen() -> None:
    calls = 0

    def second_pass_only(now: int, gradient: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return element(now, 10)(now, gradient) if calls == 2 * 20 else gradient

    anomalies = train(second_pass_only, passes=2)
    assert len(anomalies) == 1 and "step 20" in anomalies[0]


def test_gradients_that_no_hook_saw_are_taken_from_the_weights() -> None:
    """So it is with FSDP2, whose gathered weights are other tensors."""
    model = nn.Linear(16, 16)
    detector = FeatureDetector(model, torch.float32)
    for step in range(1, 10):
        model.weight.grad = torch.randn(16, 16)
        if step == 8:
            model.weight.grad[0, 0] = 1e3
        detector.check(step)
    assert "step 8" in detector.read()[0]


def test_stop_raises_what_was_found() -> None:
    with pytest.raises(NpukitError, match=r"step 9, rank 0: one element of the gradient of 2\.weight"):
        train(element(9, 100), stop=True)


def test_nothing_is_read_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 4)
    detector = FeatureDetector(model, torch.float32)
    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "__index__", "cpu", "numpy", "nonzero"):
        monkeypatch.setattr(Tensor, name, lambda *args, name=name: pytest.fail(f"{name} waits for the device"))
    for step in range(1, 4):
        model(torch.ones(2, 4)).sum().backward()
        detector.check(step)


@pytest.mark.parametrize(
    ("environ", "enable", "jump", "action"),
    [
        ({}, False, 40, "warn"),
        ({"NPU_ASD_ENABLE": "0"}, False, 40, "warn"),
        ({"NPU_ASD_ENABLE": "1"}, True, 40, "warn"),
        ({"NPU_ASD_ENABLE": "2"}, True, 40, "stop"),
        ({"NPU_ASD_CONFIG": "enable:true,with_checksum:true"}, True, 40, "warn"),
        ({"NPU_ASD_CONFIG": "enable:true,upper_thresh1:10000"}, True, 100, "warn"),
        ({"NPU_ASD_CONFIG": "enable:false", "NPU_ASD_ENABLE": "1"}, False, 40, "warn"),
    ],
)
def test_torch_npus_variables(environ: dict[str, str], enable: bool, jump: float, action: str) -> None:
    settings = FeatureDetection().with_environment(environ)
    assert (settings.enable, settings.jump, settings.action) == (enable, jump, action)


def test_switched_off_it_costs_nothing() -> None:
    model = nn.Linear(4, 4)
    detector = FeatureDetector(model, torch.float32, enable=False)
    model(torch.ones(2, 4)).sum().backward()
    detector.check(1)
    assert detector.read() == [] and not model.weight._backward_hooks
