"""The official client of OpenAI is content with the server: answers, streams, tools, structured output and errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Write a poem."}], "max_tokens": 12}
GREEDY: dict[str, Any] = {**ASK, "temperature": 0}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


class Verdict(BaseModel):
    """What the model must say."""

    is_good: bool
    grade: Literal["a", "b", "c"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY)
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].finish_reason == "length"
    assert answer.usage and (answer.usage.completion_tokens, answer.model) == (12, "tiny")
    assert answer.choices[0].message.content == client.chat.completions.create(**GREEDY).choices[0].message.content


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=2)
    chunks = list(
        client.chat.completions.create(
            **GREEDY, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    streamed = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or ()]
    assert whole.choices[0].logprobs and streamed == whole.choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 2 and token.top_logprobs[0].logprob == token.logprob for token in streamed)


def test_several_answers_differ_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    first, second = (client.chat.completions.create(**ASK, n=3, seed=7) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2] and len(set(texts)) == 3
    assert texts == [choice.message.content for choice in second.choices]
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**ASK, n=3, seed=7, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_stop_strings_and_tokens(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**GREEDY).choices[0].message.content or ""
    stop = text[3:6]
    answer = client.chat.completions.create(**GREEDY, stop=[stop])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text.partition(stop)[0], "stop")
    kept = client.chat.completions.create(**GREEDY, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert (kept.choices[0].message.content or "").endswith(stop)


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output(client: openai.OpenAI, stream: bool) -> None:
    ask = {**ASK, "max_tokens": 60}
    if stream:
        with client.chat.completions.stream(**ask, response_format=Verdict) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.parse(**ask, response_format=Verdict)
    assert isinstance(answer.choices[0].message.parsed, Verdict)
    assert answer.choices[0].finish_reason == "stop"


def test_choices_and_expressions(client: openai.OpenAI) -> None:
    def said(shape: dict[str, Any]) -> str | None:
        answer = client.chat.completions.create(**ASK, extra_body={"structured_outputs": shape})
        return answer.choices[0].message.content

    assert said({"choice": ["yes", "no"]}) in ("yes", "no")
    assert str(said({"regex": r"[0-9][0-9]-[0-9]"})).replace("-", "").isdigit()


@pytest.mark.parametrize("wanted", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_demanded_tools(client: openai.OpenAI, wanted: Any) -> None:
    ask = {**ASK, "max_tokens": 100}
    answer = client.chat.completions.create(**ask, tools=[WEATHER], tool_choice=wanted, parallel_tool_calls=False)
    calls = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None
    assert [call.function.name for call in calls if call.type == "function"] == ["weather"]
    assert calls[0].type == "function" and set(json.loads(calls[0].function.arguments)) == {"city", "days"}
    with client.chat.completions.stream(
        **ask, tools=[WEATHER], tool_choice=wanted, parallel_tool_calls=False
    ) as events:
        streamed = events.get_final_completion().choices[0].message.tool_calls or []
    assert [call.function.name for call in streamed if call.type == "function"] == ["weather"]


def test_conversation_with_a_tools_result(client: openai.OpenAI) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Is it warm?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "27 degrees"},
    ]
    assert client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER], max_tokens=2).choices


def test_completions(client: openai.OpenAI) -> None:
    text = client.completions.create(model="tiny", prompt="One plus", max_tokens=5, temperature=0).choices[0].text
    ids = client.post("../tokenize", body={"prompt": "One plus"}, cast_to=dict)["tokens"]
    many = client.completions.create(model="tiny", prompt=[ids, ids], max_tokens=5, temperature=0, n=2)
    assert [choice.text for choice in many.choices] == [text] * 4
    assert many.usage and many.usage.prompt_tokens == 2 * len(ids)
    chunks = list(client.completions.create(model="tiny", prompt="One plus", max_tokens=5, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text


def test_echo_with_logprobs_scores_a_prompt(client: openai.OpenAI) -> None:
    scored = client.completions.create(
        model="tiny", prompt="One plus one is two", max_tokens=0, echo=True, logprobs=1, temperature=0
    )
    logprobs = scored.choices[0].logprobs
    assert scored.choices[0].text == "One plus one is two"
    assert logprobs and logprobs.tokens and logprobs.token_logprobs
    assert "".join(logprobs.tokens) == scored.choices[0].text and logprobs.token_logprobs[0] is None
    assert all(token_logprob is not None and token_logprob < 0 for token_logprob in logprobs.token_logprobs[1:])


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "other"]
    assert client.models.retrieve("other").id == "other"
    assert client.chat.completions.create(**{**ASK, "model": "other"}).model == "other"


def test_asynchronous(client: openai.OpenAI) -> None:
    expected = client.chat.completions.create(**GREEDY).choices[0].message.content

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="unused") as many:
            answers = await asyncio.gather(*(many.chat.completions.create(**GREEDY) for _ in range(20)))
            return [answer.choices[0].message.content or "" for answer in answers]

    assert asyncio.run(ask()) == [expected] * 20


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, None),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"top_logprobs": 30, "logprobs": True}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}}, None),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"guided_choice": ["yes", "no"]}}, "guided_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, None),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),  # the whole vocabulary: more than --max-logprobs
    ],
)
def test_what_the_client_can_mend_is_a_400(client: openai.OpenAI, change: dict[str, Any], param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**ASK, **change})
    assert caught.value.type == "invalid_request_error" and isinstance(caught.value.body, dict)
    assert param is None or caught.value.param == param
    assert set(caught.value.body) == {"message", "type", "param", "code"}


def test_no_reasoning_effort_is_no_reasoning(client: openai.OpenAI) -> None:
    changes: list[Any] = [
        {},
        {"reasoning_effort": "none"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"reasoning_effort": "none", "extra_body": {"enable_thinking": True}},
    ]
    answers = [client.chat.completions.create(**{**ASK, **change}) for change in changes]
    plain, none, off, on = (answer.usage.prompt_tokens for answer in answers if answer.usage)
    assert plain < none == off and on == plain


def test_other_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**ASK, "model": "gpt-9"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="tiny", prompt=[5] * 4096)
    assert too_long.value.code == "context_length_exceeded"


def test_responses(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "tiny", "input": "Write a poem.", "temperature": 0}
    answer = client.responses.create(**ask, max_output_tokens=12)
    assert answer.status == "incomplete" and answer.usage and answer.usage.output_tokens == 12
    events = list(client.responses.create(**ask, max_output_tokens=12, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    parsed = client.responses.parse(
        model="tiny", input="Good?", instructions="Judge.", text_format=Verdict, max_output_tokens=60
    )
    assert isinstance(parsed.output_parsed, Verdict)


def test_responses_with_tools(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", **WEATHER["function"], "strict": True}
    ask: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Is it warm?"}]}]
    answer = client.responses.create(
        model="tiny",
        input=ask,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,  # several calls of a model with random weights may not fit
        max_output_tokens=200,
    )
    call = answer.output[0]
    assert call.type == "function_call" and set(json.loads(call.arguments)) == {"city", "days"}
    ask += [call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "27 degrees"}]
    answer = client.responses.create(
        model="tiny",
        input=ask,
        tools=[tool],
        max_output_tokens=4,
        extra_body={"min_tokens": 4},  # a call's id is random, and to some of them this model says nothing
    )
    assert answer.output_text
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="tiny", input="Hi", previous_response_id="resp_1")
