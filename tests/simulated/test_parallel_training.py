"""Several ranks over simulated HCCL end with the weights of one process that saw the whole batch."""

from __future__ import annotations

from pathlib import Path

from tests.forks import Forks

RANKS = Path(__file__).with_name("parallel_training.py")


def test_ddp_fsdp2_hsdp_and_accelerate_equal_one_process(forks: Forks) -> None:
    printed = forks.run("npukit", "run", "--device", "sim", "--devices", 4, RANKS)
    assert [line.split(":")[0] for line in printed.splitlines()] == ["DDP", "FSDP2", "HSDP", "accelerate"]
