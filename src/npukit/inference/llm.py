"""The engine as a library: a language model that answers texts and conversations.

    from npukit.inference import LLM, EngineOptions, SamplingParams

    llm = LLM("models/qwen2")
    llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=16))[0].text
    llm.chat([{"role": "user", "content": "Who are you?"}]).text
    for text in llm.stream([{"role": "user", "content": "Tell me a story."}]):
        print(text, end="")

It runs on the device of this process: `npukit run --device sim script.py` tries a script on a simulated NPU. An LLM
belongs to one thread; for many clients at once there is `npukit serve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npukit.inference.engine.request import FinishReason, Output, Request, SamplingParams
from npukit.inference.loading import load, start_engine
from npukit.inference.text import TextStream
from npukit.llm.chat.answer import Content, ToolCall
from npukit.llm.chat.messages import Message
from npukit.llm.config.options import ModelOptions
from npukit.llm.config.use import EngineOptions, Use

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Completion:
    """A complete answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...]
    reasoning: str = ""  # of a reasoning model
    tool_calls: tuple[ToolCall, ...] = ()


class LLM:
    """A model on the device of this process.

    >>> llm = LLM(Use(model={"path": "models/qwen2"}, adapters=["runs/lora"], engine={"max_model_len": 4096}))
    >>> llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=64)).text
    """

    def __init__(self, model: str | Use, options: EngineOptions | None = None) -> None:
        use = Use(model=ModelOptions(path=model)) if isinstance(model, str) else model
        self._loaded = load(use)
        self.engine = start_engine(self._loaded, options or use.engine)
        self.tokenizer = self._loaded.tokenizer
        self.default_sampling = self._loaded.defaults  # of the model's generation_config.json

    def generate(
        self, prompts: str | Sequence[str], sampling: SamplingParams | None = None, stop: Sequence[str] = ()
    ) -> list[Completion]:
        """Continue all texts in one batch.

        >>> llm.generate(["One, two,", "Red, green,"], SamplingParams(temperature=0, max_tokens=8))
        """
        texts = [prompts] if isinstance(prompts, str) else prompts
        return self._answer([self._request(self.tokenizer.encode(text), sampling) for text in texts], stop)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        tools: Tools | None = None,
    ) -> Completion:
        """Answer a conversation; tool calls and reasoning are separate from the text. Vision models take images as
        parts of a message: `{"type": "image", "image": "cat.png"}`, with a path, a data URI or bytes.

        >>> llm.chat([{"role": "user", "content": "Is it warm in Rome?"}], tools=[weather]).tool_calls
        """
        prompt, request = self._loaded.request(messages, self._sampling(sampling), tools)
        answer = self._answer([request], stop)[0]
        parts = self._loaded.chat.parse(prompt, answer.text)
        return replace(answer, text=parts.content, reasoning=parts.reasoning, tool_calls=parts.calls)

    def stream(
        self, prompt: str | Sequence[Message], sampling: SamplingParams | None = None, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """Stream the answer to a text or a conversation. Leaving the loop aborts it."""
        if isinstance(prompt, str):
            request = self._request(self.tokenizer.encode(prompt), sampling)
            yield from (piece for _, piece, _ in self._run([request], stop))
            return
        text, request = self._loaded.request(prompt, self._sampling(sampling))
        parser = self._loaded.chat.parser(text)
        for _, piece, _ in self._run([request], stop):
            yield from (part.text for part in parser.feed(piece) if isinstance(part, Content))
        yield from (part.text for part in parser.end() if isinstance(part, Content))

    def _request(self, ids: Sequence[int], sampling: SamplingParams | None) -> Request:
        return Request(tuple(ids), self._sampling(sampling))

    def _sampling(self, sampling: SamplingParams | None) -> SamplingParams:
        chosen = sampling or self.default_sampling
        return replace(chosen, end_tokens=chosen.end_tokens | self._loaded.end_tokens)

    def _answer(self, requests: Sequence[Request], stop: Sequence[str]) -> list[Completion]:
        texts, ids = [""] * len(requests), [list[int]() for _ in requests]
        ends: dict[int, FinishReason] = {}
        for index, piece, output in self._run(requests, stop):
            texts[index] += piece
            if output.token is not None:
                ids[index].append(output.token.id)
            if output.error is not None:
                raise output.error
            ends[index] = output.finish_reason or "stop"
        return [
            Completion(texts[index], tuple(ids[index]), ends[index], request.prompt)
            for index, request in enumerate(requests)
        ]

    def _run(self, requests: Sequence[Request], stop: Sequence[str]) -> Iterator[tuple[int, str, Output]]:
        """Each output with the index of its request and the text that it completes."""
        hidden = frozenset(self.tokenizer.all_special_ids) - self._loaded.chat.marker_ids
        running: dict[int, tuple[int, TextStream]] = {}
        try:
            for index, request in enumerate(requests):
                running[self.engine.add_request(request)] = (index, TextStream(self.tokenizer, stop, hidden=hidden))
            while running:
                for output in self.engine.step():
                    if output.request_id not in running:
                        continue
                    index, text = running[output.request_id]
                    is_text = output.token is not None and output.finish_reason != "stop"
                    piece = text.add(output.token.id) if is_text and output.token else ""
                    if output.finish_reason is not None or text.stopped is not None:
                        del running[output.request_id]
                        self.engine.abort_request(output.request_id)
                        piece += text.end()
                        output = output._replace(finish_reason="stop") if text.stopped is not None else output
                    yield index, piece, output
        finally:
            for number in running:
                self.engine.abort_request(number)
            while not self.engine.is_idle:  # steps in flight
                self.engine.step()
