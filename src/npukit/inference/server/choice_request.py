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
from npukit.inference.server.schema import ChatRequest, SamplingFields
from npukit.inference.server.serving import Serving


def make_choices(
    serving: Serving,
    request: SamplingFields,
    prompt: Sequence[int],
    longest: int | None,
    logprobs: int | None = None,
    constraint: Constraint | None = None,
    shown: frozenset[int] = frozenset(),
) -> list[ChoiceRequest]:
    """`n` choices for the same prompt, each with its own seed and copy of the constraint.

    `shown` are special tokens that are part of the text.
    """
    prompt = _truncated(prompt, request)
    longest = _check_length(serving, prompt, longest)
    name = "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"
    sampling = _sampling(serving, request, longest, _check_logprobs(serving, name, logprobs))
    scored = _check_logprobs(serving, "prompt_logprobs", request.prompt_logprobs)
    hidden = serving.special - shown if request.skip_special_tokens is not False else frozenset()
    choice = ChoiceRequest(
        Request(tuple(prompt), sampling, serving.adapter(request.model), scored),
        tuple(request.stops),
        bool(request.include_stop_str_in_output),
        hidden,
        frozenset(request.stop_token_ids or ()),
    )
    return [_numbered(choice, number, constraint) for number in range(request.n or 1)]


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


def _truncated(prompt: Sequence[int], request: SamplingFields) -> Sequence[int]:
    longest = request.truncate_prompt_tokens
    if longest is None or longest < 0:
        return prompt
    return prompt[:longest] if request.truncation_side == "right" else prompt[max(0, len(prompt) - longest) :]


def _check_length(serving: Serving, prompt: Sequence[int], max_tokens: int | None) -> int:
    """How many tokens the answer may have; OpenAI's error where prompt and answer do not fit the model."""
    room = serving.max_model_len - len(prompt)
    if not prompt:
        raise bad_request("The prompt is empty.", "prompt")
    if room < 1 or (max_tokens or 0) > room:
        wanted = f" and {max_tokens} were asked for" if max_tokens else ""
        raise bad_request(
            f"The model's context length is {serving.max_model_len} tokens, but the prompt has {len(prompt)}{wanted}.",
            "prompt" if room < 1 else "max_tokens",
            "context_length_exceeded",
        )
    return room if max_tokens is None else max(1, max_tokens)


def _sampling(serving: Serving, request: SamplingFields, longest: int, logprobs: int | None) -> SamplingParams:
    given: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": None if request.top_k is None else max(0, request.top_k),
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
        "min_tokens": request.min_tokens,
    }
    for name, tokens in (("logit_bias", request.logit_bias), ("stop_token_ids", request.stop_token_ids)):
        if unknown := [token for token in tokens or () if token >= serving.vocabulary]:
            raise bad_request(f"The model has no token {unknown[0]}: it has {serving.vocabulary}.", name)
    ends = frozenset() if request.ignore_eos else serving.chat.stop_ids
    return replace(
        serving.defaults,
        **{name: value for name, value in given.items() if value is not None},
        max_tokens=longest,
        end_tokens=ends | frozenset(request.stop_token_ids or ()),
        seed=secrets.randbits(62) if request.seed is None else request.seed % 2**63,
        logprobs=logprobs,
    )


def constraint_of(serving: Serving, request: SamplingFields) -> Constraint | None:
    """The constraint of response_format or structured_outputs; call it in a thread."""
    form, shape = request.response_format, request.structured_outputs
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
