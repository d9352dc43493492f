from __future__ import annotations

from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.launch import device
from npukit.launch.device import Device, choose


@pytest.fixture
def device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
    return tmp_path


def test_auto_takes_a_real_npu_first(device_files: Path) -> None:
    (device_files / "davinci0").touch()
    (device_files / "nvidia0").touch()
    assert choose(Device.auto) is Device.npu


def test_auto_takes_cuda_only_if_torch_can_use_it(device_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (device_files / "nvidia0").touch()
    monkeypatch.setattr(device, "_torch_says", lambda expression: True)
    assert choose(Device.auto) is Device.cuda
    monkeypatch.setattr(device, "_torch_says", lambda expression: False)
    assert choose(Device.auto) is Device.cpu


def test_auto_never_simulates(device_files: Path) -> None:
    assert choose(Device.auto) is Device.cpu


def test_a_device_that_is_not_there_is_refused(device_files: Path) -> None:
    with pytest.raises(NpukitError, match="--device sim"):
        choose(Device.npu)
    with pytest.raises(NpukitError, match="no cuda device"):
        choose(Device.cuda)
    assert choose(Device.sim) is Device.sim
