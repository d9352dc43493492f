"""What a constraint lets through is exactly what the schema, expression or choice describes."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.inference.grammar import Constraint, Grammars

VOCABULARY = 448  # more than the tokenizer has, as models' output layers often are


@pytest.fixture(scope="module")
def grammars(tiny_tokenizer: Any) -> Grammars:
    return Grammars(tiny_tokenizer, VOCABULARY, [tiny_tokenizer.eos_token_id])


def write(tokenizer: Any, constraint: Constraint, seed: int = 0) -> str:
    """An answer of a model that says anything that it may."""
    pick, ids = random.Random(seed), []
    for _ in range(300):
        mask = constraint.allowed()
        assert len(mask) * 8 >= VOCABULARY
        tokens = [token for token in range(VOCABULARY) if mask[token // 8] >> token % 8 & 1]
        assert tokens and max(tokens) < len(tokenizer)
        token = tokenizer.eos_token_id if tokenizer.eos_token_id in tokens else pick.choice(tokens)
        constraint.accept(token)
        if token == tokenizer.eos_token_id:
            return str(tokenizer.decode(ids))
        ids.append(token)
    raise AssertionError(f"no end: {tokenizer.decode(ids)}")


def test_json_by_schema(tiny_tokenizer: Any, grammars: Grammars) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}, "of": {"enum": ["a", "b"]}},
        "required": ["n", "of"],
        "additionalProperties": False,
    }
    constraint = grammars.json(schema)
    for seed in range(5):
        answer = json.loads(write(tiny_tokenizer, constraint.copy(), seed))
        assert set(answer) == {"n", "of"} and 1 <= answer["n"] <= 9 and answer["of"] in "ab"


def test_expression_and_choice(tiny_tokenizer: Any, grammars: Grammars) -> None:
    assert re.fullmatch(r"\d{3}-[xyz]", write(tiny_tokenizer, grammars.regex(r"\d{3}-[xyz]")))
    assert write(tiny_tokenizer, grammars.choice(["yes", "nö", 'say "hi"'])) in ["yes", "nö", 'say "hi"']
    assert write(tiny_tokenizer, grammars.lark('root ::= "a" | "b"')) in "ab"


@pytest.mark.parametrize("make", ["json", "regex", "lark"])
def test_what_cannot_be_read_is_told(grammars: Grammars, make: str) -> None:
    bad: Any = {"json": {"type": "nothing"}, "regex": "(", "lark": "start: (("}[make]
    with pytest.raises(NpukitError):
        getattr(grammars, make)(bad)


def test_calls_keep_the_schemas_of_tools_apart(tiny_tokenizer: Any, grammars: Grammars) -> None:
    tools: list[tuple[str, dict[str, Any]]] = [
        (
            "count",
            {
                "type": "object",
                "properties": {"x": {"$ref": "#/$defs/T"}, "inner": {"$ref": "#"}},
                "required": ["x"],
                "additionalProperties": False,
                "$defs": {"T": {"enum": [1, 2]}},
            },
        ),
        (
            "name",
            {
                "type": "object",
                "properties": {"x": {"$ref": "#/$defs/T"}, "y": {"$ref": "#/definitions/U"}},
                "required": ["x", "y"],
                "additionalProperties": False,
                "$defs": {"T": {"enum": ["a", "b"]}},
                "definitions": {"U": {"type": "boolean"}},
            },
        ),
    ]
    names = set()
    for seed in range(12):
        for call in json.loads(write(tiny_tokenizer, grammars.calls(tools, max_calls=2), seed)):
            names.add(call["name"])
            while "inner" in call["arguments"]:
                inner = call["arguments"].pop("inner")
                assert call["arguments"]["x"] in (1, 2)
                call["arguments"] = inner
            right = [{"x": 1}, {"x": 2}] if call["name"] == "count" else None
            assert call["arguments"] in right if right else call["arguments"]["x"] in ("a", "b")
            assert right or isinstance(call["arguments"]["y"], bool)
    assert names == {"count", "name"}


def test_an_error_on_the_way_is_no_end(tiny_tokenizer: Any, grammars: Grammars) -> None:
    constraint = grammars.regex("(?:a?){5000}a{5000}")
    token = tiny_tokenizer.encode("a")[0]
    with pytest.raises(NpukitError):
        for _ in range(100):
            constraint.allowed()
            constraint.accept(token)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"const": float("nan")}, {"const": "\ud800"}, {"type": "x"}])
def test_schemas_that_nothing_can_follow_are_refused(grammars: Grammars, schema: Any) -> None:
    with pytest.raises(NpukitError):
        grammars.json(schema)
    with pytest.raises(NpukitError):
        grammars.calls([("f", schema)], max_calls=2)
