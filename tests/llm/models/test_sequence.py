"""Two ranks that share the tokens of their rows compute what one rank computes."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen2Config

from npukit.llm.data.collate import Collator
from npukit.llm.models.attention import NAME, register
from npukit.llm.models.forward import return_loss, share_rows
from npukit.llm.tasks.losses.tokens import loss_of

RANKS = 2
WORLD = 1 + RANKS  # the group is not the first one of its job
ROWS = [{"input_ids": list(range(3, 3 + length)), "labels": [-100, *range(4, 3 + length)]} for length in (11, 5, 9)]


def model(heads: int, key_heads: int, scores: bool = False) -> Any:
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=64,
        hidden_size=8 * heads,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        num_labels=1,
        pad_token_id=0,
    )
    if scores:
        return AutoModelForSequenceClassification.from_config(shape, attn_implementation=NAME)
    made = AutoModelForCausalLM.from_config(shape, attn_implementation=NAME)
    return_loss(made)
    return made


def computed(made: Any, kind: str) -> Any:
    if kind == "packed":
        return loss_of(made, Collator(True, 0)([{**row, "lengths": [len(row["labels"])]} for row in ROWS]), longest=11)
    batch = Collator(False, 0, multiple=1)(ROWS)
    if kind == "padded":
        return loss_of(made, batch, longest=11)
    if kind == "each":
        return made(**batch, per_token=True).square().sum()
    return made(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.square().sum()


def rank(number: int, file: Path, kind: str, heads: int, key_heads: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{file}", rank=number, world_size=WORLD)
    group = dist.new_group([1, 2])
    if number == 0:
        return
    made = model(heads, key_heads, kind == "scores")
    share_rows(made, group)
    loss = computed(made, kind)
    loss.backward()
    result = [loss.detach(), *(weight.grad for weight in made.parameters())]
    for value in result:
        dist.all_reduce(value, group=group)
    torch.save([value / RANKS for value in result], f"{file}-{number}")


@pytest.mark.parametrize(
    ("kind", "heads", "key_heads"), [("packed", 3, 1), ("padded", 4, 2), ("each", 4, 1), ("scores", 4, 4)]
)
def test_two_ranks_compute_the_loss_and_gradients_of_one(kind: str, heads: int, key_heads: int, tmp_path: Path) -> None:
    register()
    file = tmp_path / "meeting"
    job = (file, kind, heads, key_heads)
    ranks = [get_context("fork").Process(target=rank, args=(number, *job)) for number in range(WORLD)]
    for process in ranks:
        process.start()
    made = model(heads, key_heads, kind == "scores")
    if kind != "packed":
        made.set_attn_implementation("eager")
    loss = computed(made, kind)
    loss.backward()
    for process in ranks:
        process.join(300)
        assert process.exitcode == 0
    expected = [loss.detach(), *(weight.grad for weight in made.parameters())]
    for number in (1, 2):
        for ours, wanted in zip(torch.load(f"{file}-{number}"), expected, strict=True):
            torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-4)
