"""Query the process that runs a scheduler. If it hangs or dies, the conversations that wait for it end."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.chat.answer import Syntax
from npukit.llm.config.reinforcement import GrpoOptions, RewardOptions
from npukit.rl.turns import worker
from npukit.rl.turns.turn import Messages, RolloutConversation, Turn, TurnReply
from npukit.rl.workers import Worker


class SchedulerProcess:
    """The scheduler of a configuration."""

    def __init__(
        self, options: GrpoOptions, rewards: RewardOptions, tokenizer: Any, syntax: Syntax | None = None
    ) -> None:
        """`syntax` is how the model calls tools."""
        if options.has_tools and syntax is None:
            raise NpukitError(
                "grpo.tools: how the chat template of this model writes calls is not known: write a function of "
                "messages instead, and name it in grpo.multi_turn_scheduler."
            )
        self._timeout, begins_with = rewards.timeout, (options, rewards.plugins, syntax, pickle.dumps(tokenizer))
        self._worker = Worker(worker.__name__, begins_with)
        self._worker.start()

    def __enter__(self) -> SchedulerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, conversations: Sequence[RolloutConversation]) -> list[Messages | str]:
        """The messages that each conversation begins with, or why it cannot begin."""
        begun, problem = self._ask("begin", list(conversations))
        return begun or [problem for _ in conversations]

    def next(self, turns: Sequence[Turn]) -> list[TurnReply]:
        """How each conversation continues. If the scheduler fails, the conversation ends."""
        replies, problem = self._ask("next", list(turns))
        return replies or [TurnReply(problem=problem) for _ in turns]

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def _ask(self, method: str, content: list[Any]) -> tuple[list[Any], str]:
        try:
            return self._worker.ask((method, content), self._timeout), ""
        except TimeoutError:
            return [], f"it took longer than {self._timeout:g} s (rewards.timeout)."
        except EOFError:
            return [], "its process ended."
