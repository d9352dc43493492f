"""HCCL between hosts: the scenarios of one host with the ranks spread over two, and what only a network can do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulated.hosts import Host, two_hosts

from npukit.simulate import environment

HERE = Path(__file__).parent
SCENARIOS = [
    *(
        "every_type_and_operation",
        "rank_tables",
        "v_forms",
        "sub_communicators",
        "issue_order_over_streams",
        "disagreement",
    ),
    *("groups_of_sends_and_receives", "a_rank_that_never_comes", "a_rank_that_is_killed"),
    *("a_rank_that_is_done_and_gone", "ranks_that_do_not_meet"),
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    if os.geteuid() != 0:
        pytest.skip("making hosts needs root")
    try:
        made = two_hosts()
        hosts = made.__enter__()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine does not let us make network namespaces: {error}")
    yield hosts
    made.__exit__(None, None, None)


def run(scenario: str, hosts: tuple[Host, Host], **variables: str) -> None:
    machine = {**environment(devices=8), "NPUKIT_SIM_OPERATORS": "", **variables}
    machine["HOSTS"] = ",".join(host.namespace for host in hosts)
    command = [sys.executable, str(HERE / "hccl_functions.py"), scenario]
    result = subprocess.run(command, env=machine, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_on_two_hosts(scenario: str, hosts: tuple[Host, Host]) -> None:
    run(scenario, hosts)


def test_the_interface_is_chosen_as_hccl_does(hosts: tuple[Host, Host]) -> None:
    run("which_interface", hosts)


def test_a_cable_that_is_cut(hosts: tuple[Host, Host]) -> None:
    """Last, as it stays cut."""
    run("a_cable_that_is_cut", hosts, HCCL_EXEC_TIMEOUT="3")
