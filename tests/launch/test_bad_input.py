from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("launch --devices 2 nowhere.py", "There is no script nowhere.py"),
        (f"launch --devices 1 --nnodes 2 {__file__}", "needs --node-rank and --master"),
        (f"launch --devices 1 --master nowhere {__file__}", "is not ADDRESS:PORT"),
        (f"launch --devices 1 --hostfile nowhere {__file__}", "There is no hostfile nowhere"),
        (f"launch --devices 1 --device cpu --auto {__file__}", "add --device sim"),
        (f"run --device cpu --auto {__file__}", "add --device sim"),
        (f"launch --devices 0 {__file__}", "'--devices': "),
        ("container --visible-devices x", "is not a list of NPUs"),
        ("container --run --format compose", "leave out --run"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence_and_exit_code_2(line: str, sentence: str, npukit: Any) -> None:
    result = npukit(*line.split())
    assert result.returncode == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_dry_run_prints_command_and_variables_and_starts_nothing() -> None:
    nodes = "--nnodes 2 --node_rank 1 --master_addr 127.0.0.1"  # as torchrun has them
    line = f"launch --device sim --nproc_per_node 3 {nodes} --dry-run {__file__} --x 1"
    command = [sys.executable, "-m", "npukit", *line.split()]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith(
        "# 3 ranks on 3 simulated NPUs (910B3), node 1 of 2 (options), node 0 is 127.0.0.1:29500\n"
    )
    assert "export TASK_QUEUE_ENABLE=2  # " in output
    assert output.rstrip().endswith(f"-m npukit.launch.script {__file__} --x 1")
