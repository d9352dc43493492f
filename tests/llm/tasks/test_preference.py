"""Preference pairs and marked answers: read, tokenised, trained."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from npukit.llm.config.options import Config, DataOptions, PreferenceOptions
from npukit.llm.data.check import find_layout, row_of
from npukit.llm.data.encode import SEPARATOR
from npukit.llm.data.files import RawRow
from npukit.llm.data.pairs import Pair
from npukit.llm.data.prepare import prepare
from npukit.llm.data.row import BadRow, Layout
from npukit.llm.data.sources import Table
from npukit.llm.finetune.train import train
from npukit.llm.models.loss import log_probabilities
from npukit.llm.tasks.losses.preference import MovingMean, Pairs, marked_loss, pair_loss
from npukit.llm.tasks.task import named

QUESTION = [{"role": "user", "content": "Why?"}]
WHY = [*QUESTION, {"role": "assistant", "content": "Because."}]


def laid_out(row: dict[str, Any], task: str = "dpo") -> Any:
    record = RawRow("rows.jsonl", 1, row)
    return row_of(record, find_layout([record], Table("rows", Layout()), named(task)), named(task))


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "Why?", "input": "", "chosen": "Because.", "rejected": "No."},
        {"conversations": [{"from": "human", "value": "Why?"}], "chosen": {"from": "gpt", "value": "Because."}}
        | {"rejected": {"from": "gpt", "value": "No."}},
        {"messages": WHY, "rejected_response": "No."},
        {"query": "Why?", "response": "Because.", "rejected_response": "No."},
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"chosen": WHY, "rejected": [*QUESTION, {"role": "assistant", "content": "No."}]},
    ],
)
def test_pairs_as_people_write_them(row: dict[str, Any]) -> None:
    assert laid_out(row) == Pair(QUESTION, "Because.", "No.")


def test_marked_answers_and_rows_without_a_preference() -> None:
    assert laid_out({"messages": WHY, "label": True}, "kto") == Pair(QUESTION, "Because.", None)
    assert laid_out({"prompt": "Why?", "completion": "Because.", "label": 0}, "kto") == Pair(QUESTION, None, "Because.")
    with pytest.raises(BadRow, match="has no rejected answer"):
        laid_out({"messages": WHY})
    with pytest.raises(BadRow, match="has no label"):
        laid_out({"messages": WHY}, "kto")


@pytest.mark.parametrize("tokens", ["npukit", "llama_factory", "ms_swift"])
def test_a_pair_is_one_row_of_two_answers(tmp_path: Path, tiny_tokenizer: Any, tokens: Any) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": WHY, "rejected_response": "No."}) + "\n")
    options = DataOptions(train=[str(file)], template="chatml", tokens=tokens, packing=False, cache=False)
    rows = prepare(options, named("dpo"), tiny_tokenizer, 0).train
    assert (rows.tokens(0) == SEPARATOR).sum() == 1
    chosen, rejected = Pairs(rows)[0]["rows"]
    for row, answer in ((chosen, "Because."), (rejected, "No.")):
        counted = row["input_ids"][row["labels"] >= 0]
        assert tiny_tokenizer.decode(counted).startswith(answer)
        assert "Why?" in tiny_tokenizer.decode(row["input_ids"][row["labels"] < 0])


def test_log_probabilities_are_those_of_the_whole_logits() -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(8, 30, bias=False), torch.randn(2, 5, 8, requires_grad=True)
    labels = torch.randint(0, 30, (2, 5))
    labels[0, :2] = -100
    wanted = head(hidden).log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0] * (labels != -100)
    actual = log_probabilities(head, hidden, labels)
    assert torch.allclose(actual, wanted, atol=1e-6)
    (gradient,) = torch.autograd.grad(actual.sum(), hidden)
    assert torch.allclose(gradient, torch.autograd.grad(wanted.sum(), hidden)[0], atol=1e-6)


class Fixed(nn.Module):
    """Answers with these log-probabilities, one token a row."""

    def __init__(self, sums: list[float]) -> None:
        super().__init__()
        self.sums = torch.tensor(sums)

    def forward(self, **batch: Any) -> torch.Tensor:
        return self.sums[:, None]


def batch_of(reference: list[float], good: list[bool]) -> dict[str, Any]:
    labels = torch.zeros(len(reference), 3, dtype=torch.long)  # two tokens count
    return {"labels": labels, "reference": torch.tensor(reference), "is_good": torch.tensor(good)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -math.log(1 / (1 + math.exp(-0.1 * 3)))),
        ({"loss": "hinge"}, 1 - 0.1 * 3),
        ({"loss": "ipo"}, (1.5 - 5) ** 2),
        ({"loss": "simpo", "beta": 2.0, "gamma": 1.0}, -math.log(1 / (1 + math.exp(-(2 * 1 - 1))))),
        ({"loss": "cpo", "sft_weight": 1.0}, -math.log(1 / (1 + math.exp(-0.1 * 2))) + 0.5),
    ],
)
def test_losses_by_their_definitions(options: dict[str, Any], expected: float) -> None:
    loss, figures = pair_loss(Fixed([-1.0, -3.0]), batch_of([-2.0, -1.0], [True]), PreferenceOptions(**options))
    assert float(loss) == pytest.approx(expected, abs=1e-5)
    assert figures["rewards/accuracies"] == 1
    apart = figures["rewards/chosen"] - figures["rewards/rejected"]
    assert figures["rewards/margins"] == pytest.approx(apart) and apart > 0


def test_several_losses_at_once() -> None:
    """BCO counts from the mean reward of all batches; of the first it is (0.1 - 0.2) / 2, of the second 0.2."""
    mix = {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1.0}
    options, moving = PreferenceOptions(mix=mix), MovingMean()
    found = [
        float(pair_loss(Fixed(logprobs), batch_of([-2.0, -1.0], [True]), options, moving)[0])
        for logprobs in ([-1.0, -3.0], [1.0, 0.0])
    ]

    def log_sigmoid(value: float) -> float:
        return -math.log(1 + math.exp(-value))

    first = -0.8 * log_sigmoid(0.3) - 0.2 * (log_sigmoid(0.1 + 0.05) + log_sigmoid(-0.05 + 0.2)) + 0.5
    mean = (-0.05 + 0.2) / 2
    second = -0.8 * log_sigmoid(0.2) - 0.2 * (log_sigmoid(0.3 - mean) + log_sigmoid(mean - 0.1)) - 0.5
    assert found == pytest.approx([first, second], abs=1e-6)


def test_kto_by_its_definition() -> None:
    # Two answers, then the two mismatched rows that measure the drift: 1 here.
    loss, figures = marked_loss(
        Fixed([-1.0, -3.0, 0.0, 0.0]), batch_of([-2.0, -1.0, -1.0, -1.0], [True, False]), PreferenceOptions()
    )
    drift = 1.0
    wanted = [1 - 1 / (1 + math.exp(-0.1 * (1 - drift))), 1 - 1 / (1 + math.exp(-0.1 * (drift + 2)))]
    assert float(loss) == pytest.approx(np.mean(wanted), abs=1e-6)
    rewards = [float(figures[f"rewards/{name}"]) for name in ("chosen", "rejected", "accuracies")]
    assert rewards == pytest.approx([0.1, -0.2, 1]) and figures["kl"] == drift


@pytest.mark.parametrize("task", ["dpo", "kto", "rm"])
def test_training_learns_the_preference(tmp_path: Path, tiny_qwen2: Path, task: str) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": WHY, "rejected_response": "No."},
        {"messages": WHY, "rejected_response": "Go."},
    ]
    if task == "kto":
        rows = [{"messages": WHY, "label": True}, {"prompt": "Why?", "completion": "No.", "label": False}]
        rows = [rows[0], {"messages": [*QUESTION, {"role": "assistant", "content": "No."}], "label": False}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Config.model_validate(
        {
            "task": task,
            "model": {"path": str(tiny_qwen2)},
            "data": {"train": str(tmp_path / "rows.jsonl"), "cache": False},
            "training": {"output": tmp_path / "out", "max_steps": 4, "batch_size": 2, "learning_rate": 1e-2}
            | {"plot": False, "save_every": None, "workers": 0, "log_every": 1},
        }
    )
    train(config)
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < losses[0]
    assert log[-1].get("rewards/accuracies", 1) == 1 and any("rewards/chosen" in entry for entry in log)
    assert losses[0] == pytest.approx({"dpo": math.log(2), "kto": 0.5}.get(task, losses[0]), abs=1e-4)
    assert (tmp_path / "out" / "reference-train.npy").exists() == (task != "rm")


def test_packed_pairs_have_the_losses_of_padded_ones(tmp_path: Path, tiny_qwen2: Path) -> None:
    rows = [{"messages": WHY, "rejected_response": "No, " * times} for times in (1, 9, 4, 2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    losses = []
    for packing in (True, False):
        output = tmp_path / str(packing)
        training = {"output": output, "max_steps": 2, "batch_size": 2, "log_every": 1, "precision": "fp32"}
        data = {"train": str(tmp_path / "rows.jsonl"), "cache": False, "packing": packing}
        model = {"path": str(tiny_qwen2)}
        train(Config.model_validate({"task": "dpo", "model": model, "data": data, "training": training}))
        log = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
        losses.append([entry["loss"] for entry in log if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert len(losses[0]) == 2
