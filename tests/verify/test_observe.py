"""What verify changes in the processes that it runs."""

from __future__ import annotations

import importlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from npukit.verify.observe import meet_at
from npukit.verify.side import free_port
from npukit.verify.watch import ProcessWatch


def test_a_master_port_that_is_taken_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(rendezvous, "TCPStore", rendezvous.TCPStore)  # put back at the end
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        meet_at(free_port())
        dist.init_process_group("gloo", f"tcp://localhost:{taken.getsockname()[1]}", rank=0, world_size=1)
        dist.destroy_process_group()


def test_the_loss_is_noted_as_it_was_before_any_scaler_scaled_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class Own(torch.amp.GradScaler):  # as torch_npu's, which is no other's `scale` either
        def scale(self, outputs: Any) -> Any:
            return outputs * 1024

    scaler = torch.amp.GradScaler
    for owner, name in ((torch.Tensor, "backward"), (scaler, "scale"), (scaler, "__init_subclass__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    ProcessWatch(tmp_path / "watched")._wrap_backward()

    class Later(Own):
        def scale(self, outputs: Any) -> Any:
            return outputs * 2

    loss = torch.ones((), requires_grad=True)
    Own("cpu").scale(loss).backward()
    Later("cpu").scale(loss).backward()
    (file,) = (tmp_path / "watched").iterdir()
    assert [json.loads(line)[:3] for line in file.read_text().splitlines()] == [["backward", "", 1.0]] * 2
