"""A run of reinforcement learning that may be killed while it samples, rewards, learns or saves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from benchmarks.tiny_server import make_example

SAVE_EVERY = 2
REWARDS = """
def short(completion_ids, completions, **columns):
    return [1 / len(ids) for ids in completion_ids]

def again(messages, turn):
    return [{"role": "user", "content": "Are you sure?"}] if turn < 3 else None
"""
TURNS = {"multi_turn_scheduler": "again", "max_completion_length": 48}


class Killer(Protocol):
    """What ends this process."""

    async_save: bool

    def batch(self) -> None: ...

    def saving(self) -> None: ...


def prepare_grpo(folder: Path) -> None:
    """The model, the questions and the reward of the run, in the folder beside its output."""
    make_example(folder)
    (folder / "rewards.py").write_text(REWARDS)
    rows = [{"messages": [{"role": "user", "content": f"Question {n}?"}]} for n in range(6)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def train_grpo(output: Path, steps: int, killer: Killer, parallel: Any, turns: bool = False) -> None:
    """Two updates from every generation, with a distance from the initial weights, dropout and Adam; in one turn or
    several.
    """
    from npukit.llm.config.options import Config
    from npukit.llm.finetune import train as finetune
    from npukit.rl import rank, rollouts
    from npukit.rl.rewards.scorer import Scorer
    from npukit.rl.sampler import Sampler
    from npukit.rl.turns.scheduler import SchedulerProcess
    from npukit.train import checkpoint

    moments = ((Sampler, "sample"), (SchedulerProcess, "next"), (Scorer, "score"), (rollouts.GrpoRollouts, "_made"))
    for owner, name in moments:
        _before(owner, name, killer.batch)
    if turns:  # a random model would seldom say what ends an answer
        finetune._end_tokens = lambda *_: frozenset(range(0, 400, 3))
    _before(checkpoint, "hash_files", killer.saving)
    folder = output.parent
    config = Config(
        task="grpo",
        model={"path": str(folder / "model")},
        tuning={"method": "full"},
        data={"train": str(folder / "questions.jsonl"), "cutoff": 64, "cache": False, "preprocessing_workers": 1},
        grpo={"num_generations": 4, "max_completion_length": 6, "num_iterations": 2, "beta": 0.05}
        | (TURNS if turns else {}),
        rewards={"plugins": str(folder / "rewards.py")},
        training={"output": output, "max_steps": steps, "batch_size": 4, "learning_rate": 1e-3, "parallel": parallel}
        | {"precision": "fp32", "save_every": SAVE_EVERY, "async_save": killer.async_save, "plot": False, "workers": 0},
    )
    rank.train(config)


def _before(owner: Any, name: str, action: Callable[[], None]) -> None:
    """Do something before every call of a function."""
    called = getattr(owner, name)

    def after(*args: Any, **more: Any) -> Any:
        action()
        return called(*args, **more)

    setattr(owner, name, after)
