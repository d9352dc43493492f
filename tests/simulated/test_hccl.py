"""Collectives between simulated NPUs: through torch.distributed as users call them, and HCCL's own functions."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.simulate import environment

HERE = Path(__file__).parent
SCENARIOS = [
    *(
        "every_type_and_operation",
        "rank_tables",
        "v_forms",
        "one_process_with_several_cards",
        "two_ranks_in_one_process",
    ),
    "sub_communicators",
    *("issue_order_over_streams", "groups_of_sends_and_receives", "wrong_arguments", "shapes_only", "eight_ranks"),
    *("disagreement", "a_rank_that_never_comes", "a_rank_that_is_killed", "a_rank_that_is_done_and_gone"),
    *("ranks_that_do_not_meet", "a_timeout_on_request", "a_slow_link"),
]


def machine(devices: int, card: str) -> dict[str, str]:
    """The environment we are in where that is a simulated one already, else a new one."""
    if "NPUKIT_SIM_SOC" in os.environ:
        return {**os.environ, "NPUKIT_SIM_DEVICES": str(devices), "NPUKIT_SIM_SOC": f"Ascend{card}"}
    return environment(devices=devices, card=card)


def launch(
    script: str, *arguments: str, ranks: int, card: str = "910B3", **variables: str
) -> list[subprocess.Popen[str]]:
    """Start a rank script once a rank, with the variables that torchrun would give it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "npukit.launch.script", str(HERE / script), *arguments],
            env={**machine(ranks, card), **job, "RANK": str(rank), "LOCAL_RANK": str(rank), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit code and output of each; none outlives the test."""
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.parametrize(("ranks", "card"), [(2, "910B3"), (3, "910_9391")])
def test_every_collective_of_torch_distributed(ranks: int, card: str) -> None:
    """The two cards differ in what torch_npu hands to HCCL: only the second has the v forms."""
    for code, output in finish(launch("hccl_collectives.py", ranks=ranks, card=card, HCCL_EXEC_TIMEOUT="300")):
        assert code == 0, output


def test_a_killed_rank_gives_the_others_torch_npus_timeout_error() -> None:
    results = finish(launch("hccl_failures.py", "a_rank_is_killed", ranks=3))
    assert results[1][0] == -signal.SIGKILL
    for code, output in (results[0], results[2]):
        assert code not in (0, -signal.SIGKILL), output
        assert "error code is 507048" in output and "EI0002" in output and "remote rank [1]" in output
        assert "finished" not in output
    left = [path.name for path in Path("/dev/shm").iterdir() if "npusim" in path.name or "hccl" in path.name]
    assert not left


def test_the_watchdog_ends_a_rank_that_does_not_look_at_its_errors() -> None:
    results = finish(launch("hccl_failures.py", "nobody_synchronizes", ranks=2))
    code, output = results[0]
    assert code == -signal.SIGABRT, output
    assert "HCCL watchdog thread terminated with exception: EI0002" in output


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_hccl_functions(scenario: str) -> None:
    variables = {**machine(8, "910B3"), "NPUKIT_SIM_OPERATORS": ""}
    command = [sys.executable, str(HERE / "hccl_functions.py"), scenario]
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
