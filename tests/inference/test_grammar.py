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
