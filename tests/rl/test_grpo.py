"""GRPO: the whole way from prompts to a model that earns more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npukit.llm.config.options import Config
from npukit.rl.rank import train

from .conftest import log_of

Counting = Callable[..., Config]


def test_a_model_learns_what_is_rewarded(counting: Counting, tmp_path: Path) -> None:
    train(counting(training={"max_steps": 30}))
    log = log_of(tmp_path / "run")
    assert log[0]["reward"] < 0.4 and log[-1]["reward"] > 0.9
