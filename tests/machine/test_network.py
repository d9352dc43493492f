from __future__ import annotations

import socket

import pytest

from npukit.errors import NpukitError
from npukit.machine.network import check_listening, interface_to, resolve


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(NpukitError, match="is in use on this machine"):
            check_listening("127.0.0.1", taken.getsockname()[1])


def test_an_address_elsewhere_is_told() -> None:
    with pytest.raises(NpukitError, match="not an address of this machine"):
        check_listening("192.0.2.1", 29500)


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(NpukitError, match=r"No machine named nowhere\.invalid"):
        resolve("nowhere.invalid")


def test_the_way_to_oneself() -> None:
    assert interface_to("127.0.0.1") == "lo"
