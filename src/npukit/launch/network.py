"""Where node 0 is, whether it can be listened at, and which way leads there."""

from __future__ import annotations

import fcntl
import socket
import struct

from npukit.errors import NpukitError

SIOCGIFADDR = 0x8915
HCCL_PORTS = range(60000, 60032)


def parse_master(text: str) -> tuple[str, int]:
    """Address and port of node 0.

    >>> parse_master("10.0.0.1:29500")
    ('10.0.0.1', 29500)
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise NpukitError(f"--master {text} is not ADDRESS:PORT, such as 10.0.0.1:29500.")
    return address.strip("[]"), int(port)


def resolve(master: str) -> str:
    """The IP address of node 0."""
    try:
        return str(socket.getaddrinfo(master, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        raise NpukitError(f"No machine named {master} can be found: give node 0's IP address with --master.") from None


def check_listening(address: str, port: int) -> None:
    """On node 0: the address must be this machine's and the port free."""
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


def used_hccl_ports() -> list[int]:
    """Those of the ports HCCL listens at that somebody else listens at."""
    used = []
    for port in HCCL_PORTS:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError:
                used.append(port)
    return used


def interface_to(address: str) -> str:
    """The network interface on the way to `address`; empty when that cannot be told."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((address, 9))  # nothing is sent
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
    """How a hostfile may call this machine."""
    name = socket.gethostname()
    names = {name, name.split(".")[0], socket.getfqdn()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        names |= {_address_of(interface, any_socket) for _, interface in socket.if_nameindex()}
    return names - {"", "127.0.0.1"}
