"""One process of a training run that generates: `python -m npukit.rl.rank`, configured by its environment."""

from __future__ import annotations

from typing import Any

from npukit.llm.config.options import Config
from npukit.llm.finetune.rank import run_rank
from npukit.train.watch import Summary


def train(config: Config) -> Summary:
    """Train to the end. The results are in training.output.

    >>> train(Config(task="grpo", model={"path": "Qwen/Qwen3-0.6B"}, data={"train": "questions.jsonl"}, rewards=…))
    """
    from npukit.llm.finetune.train import train as train_with

    if config.evaluation.predict_with_generate:
        return train_with(config, make_predictions=_predictions)
    return train_with(config, _rollouts)


def _predictions(config: Config, collate: Any, tokenizer: Any, end_tokens: frozenset[int]) -> Any:
    from npukit.rl.predictions import Predictions

    return Predictions(config, collate, tokenizer, end_tokens)


def _rollouts(config: Config, learning: Any, collate: Any, tokenizer: Any, end_tokens: frozenset[int], log: Any) -> Any:
    from npukit.rl.rollouts import GrpoRollouts

    return GrpoRollouts(config, learning.train, collate, tokenizer, end_tokens, log)


if __name__ == "__main__":
    run_rank(train)
