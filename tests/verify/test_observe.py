"""What verify changes in the processes that it runs."""

from __future__ import annotations

import importlib
import socket

import pytest

from npukit.verify.observe import meet_at
from npukit.verify.side import free_port


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
