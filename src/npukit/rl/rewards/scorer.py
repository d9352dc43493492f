"""Ask the process that runs reward functions; one that hangs or dies is ended and started again."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.reinforcement import GrpoOptions, RewardOptions
from npukit.packages import require
from npukit.rl.rewards import worker
from npukit.rl.rewards.answers import AnswerBatch, RewardProblem, Scores
from npukit.rl.rewards.calling import failed
from npukit.rl.rewards.functions import NEEDS

TO_START = 300.0  # seconds: a plug-in may import torch


class Scorer:
    """The reward functions of a configuration. `columns` are those that the data has.

    >>> with Scorer(RewardOptions(functions=["format"]), GrpoOptions(), []) as scorer:
    ...     scorer.score(AnswerBatch([[]], ["<think></think><answer></answer>"], [[1]], [{}]))
    ([[1.0]], [])
    """

    def __init__(self, options: RewardOptions, grpo: GrpoOptions, columns: Sequence[str]) -> None:
        require(*(package for name in options.functions for package in NEEDS.get(name, ())))
        self._options, self._asked = options, (options, grpo, tuple(columns))
        self._process: subprocess.Popen[bytes] | None = None
        self.names: list[str] = []
        self._start()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def score(self, answers: AnswerBatch) -> tuple[list[list[float]], list[RewardProblem]]:
        """The rewards of each answer by each function, NaN where there is none, and what went wrong."""
        by_function = [self._score(name, answers) for name in self.names]
        rewards = [list(row) for row in zip(*(scores.rewards for scores in by_function), strict=True)]
        problems = [problem for scores in by_function for problem in scores.problems]
        return rewards or [[] for _ in answers.texts], problems

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _score(self, name: str, answers: AnswerBatch) -> Scores:
        if not len(answers):
            return Scores([])
        if self._process is None:
            self._start()
        try:
            self._send((name, answers))
            reply: Scores = self._receive(self._options.timeout)
            return reply
        except TimeoutError:
            self.close()
            return failed(
                name, "timeout", f"it took longer than {self._options.timeout:g} s (rewards.timeout).", answers
            )
        except (EOFError, BrokenPipeError):
            self.close()
            return failed(name, "raised", "its process ended.", answers)

    def _start(self) -> None:
        command = [sys.executable, "-m", worker.__name__, str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        try:
            self._send(self._asked)
            reply = self._receive(TO_START)
        except (TimeoutError, EOFError, BrokenPipeError):
            self.close()
            raise NpukitError("The process of the reward functions did not start: see what it said above.") from None
        if isinstance(reply, NpukitError):
            self.close()
            raise reply
        self.names = reply

    def _send(self, value: Any) -> None:
        assert self._process and self._process.stdin
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()

    def _receive(self, seconds: float) -> Any:
        assert self._process and self._process.stdout
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError
        return pickle.load(self._process.stdout)
