"""Query the process that runs reward functions. If it hangs or dies, it is killed and restarted."""

from __future__ import annotations

from collections.abc import Sequence

from npukit.llm.config.reinforcement import REWARD_PACKAGES, GrpoOptions, RewardOptions
from npukit.packages import require
from npukit.rl.rewards import worker
from npukit.rl.rewards.answers import AnswerBatch, RewardProblem, Scores
from npukit.rl.rewards.calling import failed
from npukit.rl.workers import Worker


class Scorer:
    """The reward functions of a configuration. `columns` are those of the data.

    >>> with Scorer(RewardOptions(functions=["format"]), GrpoOptions(), []) as scorer:
    ...     scorer.score(AnswerBatch([[]], ["<think></think><answer></answer>"], [[1]], [{}]))
    ([[1.0]], [])
    """

    def __init__(self, options: RewardOptions, grpo: GrpoOptions, columns: Sequence[str]) -> None:
        require(*(package for name in options.functions if (package := REWARD_PACKAGES.of(name))))
        self._timeout = options.timeout
        self._worker = Worker(worker.__name__, (options, grpo, tuple(columns)))
        self.names: list[str] = self._worker.start()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def score(self, answers: AnswerBatch) -> tuple[list[list[float]], list[RewardProblem]]:
        """The rewards of each answer by each function, NaN if there is none, and the problems."""
        by_function = [self._score(name, answers) for name in self.names]
        rewards = [list(row) for row in zip(*(scores.rewards for scores in by_function), strict=True)]
        problems = [problem for scores in by_function for problem in scores.problems]
        return rewards or [[] for _ in answers.texts], problems

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def _score(self, name: str, answers: AnswerBatch) -> Scores:
        if not len(answers):
            return Scores([])
        try:
            scores: Scores = self._worker.ask((name, answers), self._timeout)
            return scores
        except TimeoutError:
            return failed(name, "timeout", f"it took longer than {self._timeout:g} s (rewards.timeout).", answers)
        except EOFError:
            return failed(name, "raised", "its process ended.", answers)
