"""Token ids and labels as LLaMA-Factory and ms-swift make them, as `python -m benchmarks peers` recorded them."""

from __future__ import annotations

import json
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from benchmarks.agreement.peer_code import tokens as peer_tokens

from npukit.llm.chat.chat import Chat
from npukit.llm.chat.peers import llama_factory, ms_swift
from npukit.llm.chat.peers.data import BadTurns, table
from npukit.llm.chat.peers.tools import names
from npukit.llm.chat.templates import find_template

ROOT = Path(__file__).parents[3]
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@cache
def letters(tool: str) -> Any:
    return peer_tokens.tokenizer("letters", peer_tokens.control_tokens(tool))


def recorded(tool: str) -> list[dict[str, Any]]:
    lines = (ROOT / "tests" / "data" / "peer_tokens" / f"{tool}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def written(case: dict[str, Any], turns: list[dict[str, str]], cutoff: int) -> Any:
    """What npukit makes of a row; None if the template cannot write it."""
    tokenizer = letters(case["tool"])
    tokenizer.eos_token = "</s>"  # a template may have taken another
    options = {**case["options"]}
    try:
        if case["tool"] == "llama_factory":
            slots = llama_factory.slots_named(case["template"])
            assert slots
            if slots.efficient_eos:
                options.pop("train_on_prompt", None)
            return llama_factory.Writer(slots, tokenizer, cutoff, **options).row(turns)
        meta = ms_swift.meta_named(case["template"])
        assert meta
        weigh = [options.pop("weigh")] if "weigh" in options else []
        writer = ms_swift.Writer(
            ms_swift.with_agent(meta, options.pop("agent", None)), tokenizer, weigh=weigh, **options
        )
        return writer.weighed_row(turns) if weigh else writer.row(turns)
    except BadTurns:
        return None


@pytest.mark.parametrize("tool", ["llama_factory", "ms_swift"])
def test_rows_are_those_of_the_tool(tool: str) -> None:
    for case in recorded(tool):
        if "turns" in case:
            tokens = written(case, case["turns"], 48)
            assert (tokens and list(map(list, tokens))) == case["row"], (case["template"], case["options"])


@pytest.mark.parametrize("tool", ["llama_factory", "ms_swift"])
def test_rows_with_tools_are_those_of_the_tool(tool: str) -> None:
    rows = peer_tokens.agent_rows()
    cases = [case for case in recorded(tool) if "tools_row" in case]
    assert cases
    for case in cases:
        tokens = peer_tokens.in_short(written(case, rows[case["tools_row"]], 2048), letters(tool))
        assert tokens == {"text": case["text"], "digest": case["digest"]}, (case["template"], case["options"])


def test_every_agent_of_a_template_is_known() -> None:
    for tool, key in (("llama_factory", "tool_format"), ("ms_swift", "agent")):
        wanted = {template.get(key) for template in table(tool)["templates"].values()} - {None}
        assert wanted <= set(names(tool))


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


def test_a_template_says_todays_date() -> None:
    meta = ms_swift.meta_named("llama3_2")
    assert meta is not None and meta.system_prefix is not None
    for text in (meta.prefix[0], meta.system_prefix[0]):
        assert f"Today Date: {date.today():%d %b %Y}\n" in text
