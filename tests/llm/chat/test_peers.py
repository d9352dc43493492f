"""Token ids and labels as LLaMA-Factory and ms-swift make them; benchmarks/peer_tokens.py recorded theirs."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npukit.llm.chat.chat import Chat
from npukit.llm.chat.peers import llama_factory, ms_swift
from npukit.llm.chat.peers.data import BadTurns, table
from npukit.llm.chat.templates import find_template

ROOT = Path(__file__).parents[3]
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@cache
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peer_tokens", ROOT / "benchmarks" / "peer_tokens.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def letters(tool: str) -> Any:
    return benchmark().tokenizer("letters", benchmark().control_tokens(tool))


def recorded(tool: str) -> list[dict[str, Any]]:
    lines = (ROOT / "tests" / "data" / "peer_tokens" / f"{tool}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("tool", ["llama_factory", "ms_swift"])
def test_rows_are_those_of_the_tool(tool: str) -> None:

    for case in recorded(tool):
        tokenizer = letters(tool)
        tokenizer.eos_token = "</s>"  # a template may have taken another
        try:
            if tool == "llama_factory":
                slots = llama_factory.slots_named(case["template"])
                assert slots
                wanted = {**case["options"]}
                if slots.efficient_eos:
                    wanted.pop("train_on_prompt", None)
                found = llama_factory.Writer(slots, tokenizer, 48, **wanted).row(case["turns"])
            else:
                meta = ms_swift.meta_named(case["template"])
                assert meta
                found = ms_swift.Writer(meta, tokenizer, **case["options"]).row(case["turns"])
        except BadTurns:
            assert case["row"] is None, case
            continue
        assert list(map(list, found)) == case["row"], (case["template"], case["options"])


@pytest.mark.parametrize("tool", ["llama_factory", "ms_swift"])
def test_every_template_can_be_talked_to(tool: str) -> None:
    """As Jinja a template writes a conversation that the writer's text begins with."""
    for name in table(tool)["templates"]:
        tokenizer = letters(tool)
        tokenizer.eos_token = "</s>"  # a template may have taken another
        template = find_template(name, tokenizer, tool)
        chat = Chat(tokenizer, template)
        turns = TURNS[1:] if name == "dummy" or (template.meta and template.meta.system_prefix is None) else TURNS
        text = chat.prompt(turns, add_generation_prompt=True).text
        assert "Hi" in text and "{{" not in text, name


def test_the_template_of_a_model() -> None:
    assert ms_swift.template_of("Qwen/Qwen2.5-7B-Instruct", None) == "qwen2_5"
    assert ms_swift.template_of("/models/Qwen3-8B/", "Qwen3ForCausalLM") == "qwen3"
    assert ms_swift.template_of("mine", "Gemma2ForCausalLM") == "gemma"
    assert ms_swift.template_of("mine", "Qwen2ForCausalLM") is None


def test_a_long_row_loses_a_share_of_each_turn() -> None:
    assert llama_factory.shares(300, 100, 100) == (75, 25)
    assert llama_factory.shares(300, 20, 100) == (80, 20)
    assert llama_factory.shares(20, 300, 100) == (20, 80)
