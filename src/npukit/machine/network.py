"""The network: interfaces, ports in use, and whether and how node 0 of a job can be reached."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
import time
from collections.abc import Mapping

from npukit.errors import NpukitError
from npukit.machine.machine import Machine

SIOCGIFADDR = 0x8915
_ASK_AGAIN = 2.0
HCCL_BASE_PORT, HCCL_PORTS = 60000, 32


def resolve(master: str, patience: float = 0) -> str:
    """The IP address of node 0. Names of pods can be resolved only some time after they start.

    >>> resolve("job-worker-0.job", patience=300)
    '10.0.0.12'
    """
    started = time.monotonic()
    while True:
        try:
            return str(socket.getaddrinfo(master, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            if time.monotonic() - started >= patience:
                raise NpukitError(
                    f"No machine named {master} can be found: give node 0's IP address with --master."
                ) from None
        time.sleep(_ASK_AGAIN)


def check_listening(address: str, port: int) -> None:
    """On node 0, check that the address belongs to this machine and the port is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except PermissionError:
            raise NpukitError(f"Port {port} is reserved for the system: choose one above 1024 with --master.") from None
        except OSError as error:
            if error.errno == 98:
                raise NpukitError(f"Port {port} is in use on this machine: choose another with --master.") from None
            raise NpukitError(
                f"This is node 0, but {address} is not an address of this machine: see --master and --node-rank."
            ) from None


def interfaces(machine: Machine) -> tuple[str, ...]:
    """The network interfaces that are up, except loopback."""
    folders = [path for path in machine.glob("/sys/class/net/*") if path.name != "lo"]
    states = {path.name: machine.read(f"{machine.shown(path)}/operstate").strip() for path in folders}
    return tuple(name for name, state in states.items() if state in ("up", "unknown"))


def ports_in_use(machine: Machine) -> frozenset[int]:
    """The TCP ports with a listener."""
    table = machine.read("/proc/net/tcp") + machine.read("/proc/net/tcp6")
    listening = re.findall(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A ", table, re.MULTILINE)
    return frozenset(int(port, 16) for port in listening)


def hccl_ports(environ: Mapping[str, str]) -> range:
    """The ports that HCCL listens on."""
    base = environ.get("HCCL_IF_BASE_PORT", "")
    first = int(base) if base.isdecimal() else HCCL_BASE_PORT
    return range(first, first + HCCL_PORTS)


def interface_to(address: str) -> str:
    """The network interface used to reach `address`; empty if unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((address, 9))  # connecting a UDP socket sends nothing
            mine = way.getsockname()[0]
            return next((name for _, name in socket.if_nameindex() if _address_of(name, way) == mine), "")
    except OSError:
        return ""


def _address_of(interface: str, any_socket: socket.socket) -> str:
    try:
        answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


def names_of_this_host() -> set[str]:
    """The names by which a hostfile may refer to this machine."""
    name = socket.gethostname()
    names = {name, name.split(".")[0], socket.getfqdn()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        names |= {_address_of(interface, any_socket) for _, interface in socket.if_nameindex()}
    return names - {"", "127.0.0.1"}
