"""Models that classify, embed or rank: rows read, losses, a few steps."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from npukit.errors import NpukitError
from npukit.llm.config.options import Config, HeadOptions
from npukit.llm.data.prepare import prepare
from npukit.llm.data.row import BadRow, Layout, LeftOut
from npukit.llm.finetune.train import train
from npukit.llm.tasks.losses.head import TextRows, draw_documents, embedded
from npukit.llm.tasks.task import named

ROWS: dict[str, list[dict[str, Any]]] = {
    "classify": [{"query": f"number {n}", "label": n % 3} for n in range(8)],
    "embed": [{"query": f"number {n}", "positive": f"the number {n}"} for n in range(8)],
    "rerank": [{"query": f"number {n}", "positive": [f"it is {n}"], "negative": ["no", "never"]} for n in range(8)],
}


def test_rows_as_people_and_ms_swift_write_them() -> None:
    user, other = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    layout = Layout("messages", min_label=0.5)
    assert named("classify").row({"messages": [user], "label": "2"}, layout).labels == (2.0,)
    assert named("classify").row({"text": "a", "label": [0, 2]}, layout).texts == ([user],)
    row = {"messages": [user], "positive_messages": [[other]], "label": 0.9}
    assert named("embed").row(row, layout).texts == ([user], [other])
    ranked = named("rerank").row({"query": "a", "positive": "b", "negative": ["c", "d"]}, layout)
    assert ranked.labels == (1.0, 0.0, 0.0) and ranked.texts[0][1] == {"role": "assistant", "content": "b"}
    with pytest.raises(LeftOut):
        named("embed").row({**row, "label": 0.2}, layout)
    for bad in ({"query": "a", "label": "good"}, {"query": "a"}, {"query": "a", "label": float("nan")}):
        with pytest.raises(BadRow):
            named("classify").row(bad, layout)


def config(task: str, tmp_path: Path, model: Path, **head: Any) -> Config:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]))
    return Config(
        task=task,
        model={"path": str(model)},
        data={"train": [str(file)], "cutoff": 32, "cache": False},
        head=head,
        tuning={"rank": 2},
        training={"output": tmp_path / "out", "max_steps": 3, "batch_size": 4, "learning_rate": 0.02, "plot": False},
    )


@pytest.mark.parametrize(
    ("task", "head"),
    [
        ("classify", {"labels": 3}),
        ("classify", {"labels": 3, "problem": "several"}),
        ("classify", {"labels": 1, "problem": "number"}),
        ("embed", {}),
        ("rerank", {"ranking": "listwise", "temperature": 1.0}),
        ("rerank", {"yes": "a", "no": "b"}),
    ],
)
def test_a_head_learns(task: str, head: dict[str, Any], tmp_path: Path, tiny_qwen2: Path) -> None:
    summary = train(config(task, tmp_path, tiny_qwen2, **head))
    losses = [json.loads(line).get("loss") for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert summary.steps == 3 and all(loss == loss for loss in losses)
    saved = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert any("score" in name for name in saved) == (task == "classify" or "ranking" in head)


def test_a_label_that_is_no_class_is_named(tmp_path: Path, tiny_qwen2: Path) -> None:
    with pytest.raises(NpukitError, match=r"head\.labels"):
        train(config("classify", tmp_path, tiny_qwen2, labels=2))


def test_infonce_is_the_cross_entropy_of_similarities() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    options = HeadOptions(temperature=0.5)
    batch = {"input_ids": None, "attention_mask": None, "texts": torch.tensor([2, 2, 2]), "targets": torch.ones(3)}
    loss = embedded(lambda **_: vectors, batch, options)
    wanted = torch.nn.functional.cross_entropy(vectors[0::2] @ vectors[1::2].T / 0.5, torch.arange(3))
    assert loss == pytest.approx(float(wanted), abs=1e-6)


def test_infonce_with_questions_and_without_false_negatives() -> None:
    vectors = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 1], [0, 1], [1, 0.1]]), dim=1)
    options = HeadOptions(temperature=1.0, questions=True, fake_margin=0.1)
    batch = {"input_ids": None, "attention_mask": None, "texts": torch.tensor([2, 2]), "targets": torch.ones(2)}
    loss = embedded(lambda **_: vectors, batch, options)
    similar = vectors[0::2] @ vectors[1::2].T  # the second text is nearer to the first question than its own is
    first = torch.stack([similar[0, 0], vectors[0] @ vectors[2]])
    second = torch.stack([similar[1, 1], vectors[0] @ vectors[2]])  # as is the first to the second
    wanted = -(first.log_softmax(0)[0] + second.log_softmax(0)[0]) / 2
    assert loss == pytest.approx(float(wanted), abs=1e-6)


def test_documents_are_drawn_up_to_the_limit(tmp_path: Path, tiny_tokenizer: Any, tiny_qwen2: Path) -> None:
    wanted = config("rerank", tmp_path, tiny_qwen2, negatives=1)
    rows = prepare(wanted.data.model_copy(update={"packing": False}), named("rerank"), tiny_tokenizer, 0).train
    item = TextRows(rows, partial(draw_documents, options=wanted.head))[0]
    assert item["labels"].tolist() == [1.0, 0.0] and len(item["rows"]) == 2
    assert tiny_tokenizer.decode(item["rows"][0]["input_ids"]).endswith("it is 0")
