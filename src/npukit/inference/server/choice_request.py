"""Turns a client's request into requests for the engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from npukit.inference.engine.request import Request, SamplingParams
from npukit.inference.grammar import Constraint
from npukit.inference.server.body import parse_json
from npukit.inference.server.errors import bad_request
from npukit.inference.server.generate import ChoiceRequest
from npukit.inference.server.schema import SamplingFields
from npukit.inference.server.serving import Serving


def make_choices(
    serving: Serving,
    asked: SamplingFields,
    prompt: Sequence[int],
    longest: int | None,
    logprobs: int | None = None,
    constraint: Constraint | None = None,
    shown: frozenset[int] = frozenset(),
) -> list[ChoiceRequest]:
    """`n` choices for the same prompt, each with its own seed and copy of the constraint.

    `shown` are special tokens that are part of the text.
    """
    prompt = _truncated(prompt, asked)
    longest = _check_length(serving, prompt, longest)
    sampling = _sampling(serving, asked, longest, _check_logprobs(serving, "logprobs", logprobs))
    scored = _check_logprobs(serving, "prompt_logprobs", asked.prompt_logprobs)
    request = Request(tuple(prompt), sampling, serving.adapter(asked.model), scored)
    hidden = serving.special - shown if asked.skip_special_tokens is not False else frozenset()
    stop_tokens = frozenset(asked.stop_token_ids or ())
    choice = ChoiceRequest(request, tuple(asked.stops), bool(asked.include_stop_str_in_output), hidden, stop_tokens)
    return [_numbered(choice, number, constraint) for number in range(asked.n or 1)]


def _numbered(choice: ChoiceRequest, number: int, constraint: Constraint | None) -> ChoiceRequest:
    sampling = replace(choice.request.sampling, seed=(choice.request.sampling.seed + number) % 2**63)
    grammar = constraint.copy() if constraint else None
    return replace(choice, request=replace(choice.request, sampling=sampling, grammar=grammar))


def _check_logprobs(serving: Serving, name: str, wanted: int | None) -> int | None:
    """The number of tokens with log-probabilities."""
    count = serving.vocabulary if wanted == -1 else wanted
    if count is not None and count > serving.options.max_logprobs:
        raise bad_request(f"{name} can be {serving.options.max_logprobs} at most (--max-logprobs).", name)
    return count


def _truncated(prompt: Sequence[int], asked: SamplingFields) -> Sequence[int]:
    longest = asked.truncate_prompt_tokens
    if longest is None or longest < 0:
        return prompt
    return prompt[:longest] if asked.truncation_side == "right" else prompt[max(0, len(prompt) - longest) :]


def _check_length(serving: Serving, prompt: Sequence[int], max_tokens: int | None) -> int:
    """How many tokens the answer may have; OpenAI's error where prompt and answer do not fit the model."""
    room = serving.max_model_len - len(prompt)
    if not prompt:
        raise bad_request("The prompt is empty.", "prompt")
    if room < 1 or (max_tokens or 0) > room:
        asked = f" and {max_tokens} were asked for" if max_tokens else ""
        raise bad_request(
            f"The model's context length is {serving.max_model_len} tokens, but the prompt has {len(prompt)}{asked}.",
            "prompt" if room < 1 else "max_tokens",
            "context_length_exceeded",
        )
    return room if max_tokens is None else max(1, max_tokens)


def _sampling(serving: Serving, asked: SamplingFields, longest: int, logprobs: int | None) -> SamplingParams:
    given: dict[str, Any] = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": None if asked.top_k is None else max(0, asked.top_k),
        "min_p": asked.min_p,
        "repetition_penalty": asked.repetition_penalty,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "logit_bias": asked.logit_bias,
        "min_tokens": asked.min_tokens,
    }
    for name, tokens in (("logit_bias", asked.logit_bias), ("stop_token_ids", asked.stop_token_ids)):
        if unknown := [token for token in tokens or () if token >= serving.vocabulary]:
            raise bad_request(f"The model has no token {unknown[0]}: it has {serving.vocabulary}.", name)
    ends = frozenset() if asked.ignore_eos else serving.chat.stop_ids
    return replace(
        serving.defaults,
        **{name: value for name, value in given.items() if value is not None},
        max_tokens=longest,
        end_tokens=ends | frozenset(asked.stop_token_ids or ()),
        seed=secrets.randbits(62) if asked.seed is None else asked.seed % 2**63,
        logprobs=logprobs,
    )


def constraint_of(serving: Serving, asked: SamplingFields) -> Constraint | None:
    """The constraint of response_format or structured_outputs; call it in a thread."""
    form, shape = asked.response_format, asked.structured_outputs
    if form is not None and form.type == "json_schema" and form.json_schema is not None:
        return serving.grammars().json(form.json_schema.schema_)
    if form is not None and form.type == "json_object":
        return serving.grammars().json()
    if shape is None:
        return None
    if shape.json_ is not None:
        return serving.grammars().json(_schema(shape.json_))
    if shape.regex is not None:
        return serving.grammars().regex(shape.regex)
    if shape.choice is not None:
        return serving.grammars().choice(shape.choice)
    if shape.grammar is not None:
        return serving.grammars().lark(shape.grammar)
    return serving.grammars().json() if shape.json_object else None


def _schema(given: dict[str, Any] | str) -> dict[str, Any]:
    schema = parse_json(given.encode()) if isinstance(given, str) else given
    if not isinstance(schema, dict):
        raise bad_request("structured_outputs.json must be a JSON schema.", "structured_outputs")
    return schema
