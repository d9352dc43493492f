"""Hosts that are network namespaces of this machine, joined by a cable that can be cut."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Host:
    """A namespace, held by a process that sleeps in it."""

    pid: int
    address: str

    @property
    def namespace(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    def inside(self, *command: str) -> list[str]:
        """The command that runs a command on this host."""
        return ["nsenter", f"--net={self.namespace}", *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.inside(*command), check=True, capture_output=True)

    def cut(self) -> None:
        """Pull the cable: what is sent is lost, and nobody is told."""
        self.run("ip", "link", "set", "cable", "down")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """10.77.0.1 and 10.77.0.2; OSError or CalledProcessError where this machine does not let us make them."""
    holders = [subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 900"], stdout=-1) for _ in range(2)]
    try:
        hosts = [Host(holder.pid, f"10.77.0.{number}") for number, holder in enumerate(holders, start=1)]
        for holder in holders:
            assert holder.stdout
            if not holder.stdout.readline():
                raise OSError("no network namespace can be made")
        link = ["ip", "link", "add", "cable", "netns", str(hosts[0].pid), "type", "veth"]
        subprocess.run([*link, "peer", "name", "cable", "netns", str(hosts[1].pid)], check=True, capture_output=True)
        for host in hosts:
            host.run("ip", "link", "set", "lo", "up")
            host.run("ip", "addr", "add", f"{host.address}/24", "dev", "cable")
            host.run("ip", "link", "set", "cable", "up")
        yield hosts[0], hosts[1]
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def enter(namespace: str) -> None:
    """Move this process to a host."""
    file = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(file)
