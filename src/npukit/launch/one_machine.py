"""Keeps the ranks' communication on this machine: by default, torch listens on every network interface."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

LOOPBACK = "127.0.0.1"


def stay_on_this_machine() -> None:
    """Make torchrun's stores in this process, and gloo in its ranks, use the loopback interface.

    >>> stay_on_this_machine()
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store: Any = TCPStore

    def on_loopback(host_name: str, port: int, *args: Any, is_master: bool = False, **kwargs: Any) -> Any:
        if not is_master:
            return store(host_name, port, *args, is_master=False, **kwargs)
        listener = socket.create_server((LOOPBACK, port))
        port, listening = listener.getsockname()[1], listener.detach()
        return store(LOOPBACK, port, *args, is_master=True, master_listen_fd=listening, **kwargs)

    module: Any = c10d_rendezvous_backend
    module.TCPStore = on_loopback
    package: Any = dist
    package.TCPStore = on_loopback
