"""Perplexity against transformers' own loss; multiple choice in three layouts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions
from npukit.inference.evaluate import _windows, evaluate, mean_loss, read_choices
from npukit.inference.loading import load
from npukit.llm.config.use import Use

TEXT = "The quick brown fox jumps over the lazy dog. Explain why the sky is blue. " * 8


@pytest.fixture(scope="module")
def loaded(tiny_qwen2: Path) -> Any:
    return load(Use(model={"path": str(tiny_qwen2)}), torch.device("cpu"))


def test_perplexity_is_the_loss_of_transformers(loaded: Any, tiny_qwen2: Path, tmp_path: Path) -> None:
    ids = torch.tensor([loaded.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        expected = loaded.model(ids, labels=ids).loss.item()
    (tmp_path / "text.txt").write_text(TEXT)
    (evaluated,) = evaluate(Use(model={"path": str(tiny_qwen2)}), [str(tmp_path)]).files
    assert evaluated.tokens == ids.shape[1] - 1
    assert evaluated.perplexity == pytest.approx(math.exp(expected), rel=1e-4)


def test_each_token_of_a_long_text_counts_once(loaded: Any) -> None:
    assert list(_windows(10, 4)) == [(0, 0, 4), (4, 2, 6), (6, 4, 8), (8, 6, 10)]
    ids = loaded.tokenizer(TEXT)["input_ids"]
    _, tokens = mean_loss(Engine(loaded.model, EngineOptions(max_model_len=33)), ids)
    assert tokens == len(ids) - 1


@pytest.mark.parametrize(
    "text",
    [
        "id,question,A,B,C,D,answer,explanation\n0,首都?,北京,上海,广州,深圳,A,\n",
        ",Question,A,B,C,D,Answer\n0,首都?,北京,上海,广州,深圳,A\n",
        "首都?,北京,上海,广州,深圳,A\n",
    ],
    ids=["C-Eval", "CMMLU", "MMLU"],
)
def test_layouts_of_multiple_choice(text: str, tmp_path: Path) -> None:
    (tmp_path / "choice.csv").write_text(text)
    (choice,) = read_choices(tmp_path / "choice.csv")
    assert (choice.question, choice.right) == ("首都?", "A")
    assert choice.prompt.splitlines()[1:] == ["A. 北京", "B. 上海", "C. 广州", "D. 深圳", "答案："]


def test_the_likeliest_letter_is_the_answer(tiny_qwen2: Path, tmp_path: Path) -> None:
    loaded = load(Use(model={"path": str(tiny_qwen2)}), torch.device("cpu"))  # an engine takes a model for itself
    rows = [("Sky?", "blue", "red", "no", "yes"), ("Dog?", "lazy", "quick", "fox", "cat")]
    expected = []
    for question, *answers in rows:
        listed = "\n".join(f"{letter}. {answer}" for letter, answer in zip("ABCD", answers, strict=True))
        losses = {}
        for letter in "ABCD":
            ids = torch.tensor([loaded.tokenizer(f"{question}\n{listed}\nAnswer: {letter}")["input_ids"]])
            with torch.no_grad():
                losses[letter] = loaded.model(ids, labels=ids).loss.item()
        expected.append(min(losses, key=lambda letter: losses[letter]))
    lines = [",".join([*row, letter]) for row, letter in zip(rows, expected, strict=True)]
    (tmp_path / "right.csv").write_text("\n".join(lines) + "\n")
    assert evaluate(Use(model={"path": str(tiny_qwen2)}), [str(tmp_path)]).accuracy == 100


def test_wrong_files_are_told(tiny_qwen2: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(NpukitError, match="columns"):
        evaluate(Use(model={"path": str(tiny_qwen2)}), [str(tmp_path / "bad.csv")])
    with pytest.raises(NpukitError, match="no file"):
        evaluate(Use(model={"path": str(tiny_qwen2)}), ["nothing.txt"])
