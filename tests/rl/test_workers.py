"""The processes that run the user's Python end with training, and so does what they have started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npukit.llm.config.options import Config
from npukit.llm.config.reinforcement import GrpoOptions, RewardOptions
from npukit.rl.rank import train
from npukit.rl.rewards.answers import AnswerBatch
from npukit.rl.rewards.scorer import Scorer

# Of a function that leaves a process behind; END stands for how it ends.
REWARDS = """
import os, signal, subprocess, time
subprocess.Popen(["sleep", "600"])
with open(os.path.join(os.path.dirname(__file__), "group"), "w") as file:
    file.write(str(os.getpgrp()))

def mine(completions):
    END
    return [float(number) for number in range(len(completions))]
"""
SCHEDULER = """
import os, subprocess
subprocess.Popen(["sleep", "600"])
with open(os.path.join(os.path.dirname(__file__), "scheduler"), "w") as file:
    file.write(str(os.getpgrp()))

def again(messages):
    return None
"""


def members(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    stats = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats.append(file.read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    fields = {stat: stat.rpartition(")")[2].split() for stat in stats}
    return [stat for stat, (state, _, its_group, *_) in fields.items() if int(its_group) == group and state != "Z"]


def must_end(file: Path) -> None:
    group, deadline = int(file.read_text()), time.monotonic() + 30  # a busy machine ends them a little later
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not members(group)


@pytest.mark.parametrize("ending", ["normal", "exception", "SIGTERM"])
def test_no_process_outlives_training(
    counting: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    end = "os.kill(os.getppid(), signal.SIGTERM)" if ending == "SIGTERM" else "pass"
    (tmp_path / "rewards.py").write_text(REWARDS.replace("END", end))
    (tmp_path / "turns.py").write_text(SCHEDULER)
    config = counting(
        rewards={"plugins": [str(tmp_path / "rewards.py"), str(tmp_path / "turns.py")], "functions": ["mine"]},
        grpo={"multi_turn_scheduler": "again", "max_completion_length": 4},
        training={"batch_size": 8, "max_steps": 2},
    )
    if ending == "exception":
        monkeypatch.setattr("npukit.rl.rollouts.advantages", 1 / 2)  # no function: it cannot be called
        with pytest.raises(TypeError):
            train(config)
    else:
        assert train(config).exit_code == (128 + signal.SIGTERM if ending == "SIGTERM" else 0)
    must_end(tmp_path / "group")
    must_end(tmp_path / "scheduler")


@pytest.mark.parametrize("hangs", [True, False])
def test_no_process_outlives_one_that_was_killed(tmp_path: Path, hangs: bool) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(REWARDS.replace("END", "time.sleep(600)" if hangs else "pass"))
    parent = multiprocessing.get_context("fork").Process(target=ask, args=(file,))
    parent.start()
    while not (tmp_path / "group").exists() or not (tmp_path / "group").read_text():
        time.sleep(0.1)
    assert parent.pid
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    must_end(tmp_path / "group")


def ask(file: Path) -> None:
    with Scorer(RewardOptions(plugins=[file]), GrpoOptions(), []) as scorer:
        scorer.score(answer())
        time.sleep(600)


def answer() -> AnswerBatch:
    return AnswerBatch([[]], ["a"], [[1]], [{}])


def test_what_a_function_starts_ends_when_it_takes_too_long(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(REWARDS.replace("END", "time.sleep(600)"))
    with Scorer(RewardOptions(plugins=[file], timeout=1.0), GrpoOptions(), []) as scorer:
        problems: list[Any] = scorer.score(answer())[1]
        assert [problem.kind for problem in problems] == ["timeout"]
        must_end(tmp_path / "group")
