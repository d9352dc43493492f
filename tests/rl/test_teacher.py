"""On-policy distillation: a teacher's opinion of each token of the model's own answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.conftest import log_of
from tests.rl.test_grpo import completions
from transformers import AutoModelForCausalLM, AutoTokenizer

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.tasks import task as tasks
from npukit.llm.tasks.losses.grpo import loss_of
from npukit.rl.rank import train

Counting = Callable[..., Config]


@pytest.fixture
def teacher(tiny_qwen2: Path, tmp_path: Path) -> Path:
    """A model that is surer of itself, with other first choices."""
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    with torch.no_grad():
        model.lm_head.weight.copy_(5 * model.lm_head.weight.roll(1, 0))
    model.save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(tiny_qwen2).save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


def test_a_token_counts_by_what_the_teacher_thinks_of_it_beside_its_reward() -> None:
    draw = torch.Generator().manual_seed(0)
    logprobs, old, theirs = (-torch.rand(2, 3, generator=draw, dtype=torch.float64) for _ in range(3))
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]], dtype=torch.float64)
    batch = {"mask": mask, "advantages": torch.tensor([1.0, -0.5]), "sampled": old, "old": old, "teacher": theirs}
    options = GrpoOptions(loss_type="grpo", teacher_kl_coef=0.5)
    loss, figures = loss_of(logprobs, torch.ones_like(logprobs), batch, options)
    wanted, kl = 0.0, 0.0
    for row, advantage in enumerate((1.0, -0.5)):
        places = range(int(mask[row].sum()))
        for at in places:
            ratio = float((logprobs[row, at] - old[row, at]).exp())
            own = advantage + 0.5 * float(theirs[row, at] - old[row, at])
            wanted -= min(ratio * own, min(max(ratio, 0.8), 1.2) * own) / len(places) / 2
            change = float(theirs[row, at] - old[row, at])
            kl += (2.718281828459045**change - change - 1) / 5
    assert float(loss) == pytest.approx(wanted, abs=1e-12) and float(figures["teacher_kl"]) == pytest.approx(kl)


def test_a_model_becomes_like_its_teacher(counting: Counting, tmp_path: Path) -> None:
    """Which has learnt what is rewarded; the reward itself counts for nothing here."""
    output = str(tmp_path / "teacher")
    train(counting(training={"max_steps": 15, "output": output}))
    grpo = {"teacher": output, "num_generations": 1}
    train(counting(grpo=grpo, rewards={"weights": [0.0]}, training={"max_steps": 15}))
    log = log_of(tmp_path / "run")
    assert log[0]["rewards/low/mean"] < 0.4 and log[-1]["rewards/low/mean"] > 0.7
    assert all(entry["reward"] == 0 for entry in log)


def test_without_rewards(counting: Counting, teacher: Path, tmp_path: Path) -> None:
    train(counting(grpo={"teacher": str(teacher), "num_generations": 1}, rewards={"plugins": []}))
    assert all(entry["teacher_kl"] > 0 and entry["grad_norm"] > 0 for entry in log_of(tmp_path / "run"))
    assert all(answer["rewards"] == {} and answer["reward"] is None for answer in completions(tmp_path / "run"))


def test_a_teacher_beside_rewards_on_two_batches(counting: Counting, teacher: Path, tmp_path: Path) -> None:
    grpo = {"teacher": str(teacher), "num_iterations": 2, "beta": 0.1}
    train(counting(grpo=grpo, tuning={"method": "lora"}, training={"batch_size": 8, "accumulation": 2}))
    assert all(entry["teacher_kl"] > 0 and entry["reward"] > 0 for entry in log_of(tmp_path / "run"))


def test_what_a_teacher_cannot_do_is_refused(counting: Counting, teacher: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(teacher)
    with pytest.raises(NpukitError):  # other tokens
        train(counting(grpo={"teacher": str(teacher)}))
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"num_generations": 1}, "grpo.num_generations"),
        ({"teacher": str(teacher), "loss_type": "real"}, "grpo.teacher"),
    )
    for grpo, option in (*cases, ({"stop": [""]}, "grpo.stop")):
        config = counting(grpo=grpo)
        assert option in dict(tasks.of(config).problems(config))
