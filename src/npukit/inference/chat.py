"""A conversation with a model: its history, its settings and streamed answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.engine import Engine
from npukit.inference.engine.request import FinishReason, SamplingParams
from npukit.inference.loading import Loaded
from npukit.inference.pictures import Pictures, from_disk
from npukit.inference.text import TextStream
from npukit.llm.chat.answer import Content, Part
from npukit.llm.medium import MediaItem
from npukit.report.writing import write_json

# What /set can change.
SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "seed",
)


@dataclass(frozen=True)
class GenerationStats:
    """Length and speed of an answer."""

    tokens: int
    first: float  # seconds until the first token
    seconds: float
    finish_reason: FinishReason

    @property
    def per_second(self) -> float:
        """Tokens per second after the first one."""
        return (self.tokens - 1) / (self.seconds - self.first) if self.tokens > 1 else 0.0


class Conversation:
    """A conversation with its history.

    >>> talk = Conversation(loaded, Engine(loaded.model))
    >>> for part in talk.answer("Who are you?"): print(part.text, end="")
    >>> talk.figures.per_second
    """

    def __init__(
        self, loaded: Loaded, engine: Engine, sampling: SamplingParams | None = None, stops: tuple[str, ...] = ()
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        self.shown: list[str] = []  # images of the next question
        self.system = loaded.chat.system
        self.sampling = sampling or loaded.defaults
        self.figures: GenerationStats | None = None  # of the last answer
        self._loaded, self._engine, self._stops = loaded, engine, stops
        self._hidden = frozenset(loaded.tokenizer.all_special_ids) - loaded.chat.marker_ids

    def show(self, file: Path) -> None:
        """Add an image to the next question; raises NpukitError if it cannot be used."""
        Pictures(self._loaded.images, [MediaItem("image", str(file))], from_disk(Path()))
        self.shown.append(str(file.absolute()))

    def answer(self, text: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[Part]:
        """Stream the answer to a question. It ends early when `stopped` returns true; the part so far stays.

        Raises NpukitError, without a change of the history, if the question cannot be answered.
        """
        pictures = [{"type": "image", "image": path} for path in self.shown]
        content = [*pictures, {"type": "text", "text": text}] if pictures else text
        messages = [*self.messages, {"role": "user", "content": content}]
        system = [{"role": "system", "content": self.system}] if self.system else []
        prompt, request = self._loaded.request([*system, *messages], self.sampling)
        parser = self._loaded.chat.parser(prompt)
        answer = ""
        start, number = time.monotonic(), self._engine.add_request(request)
        self.messages, self.shown = messages, []
        for piece in self._pieces(number, start, stopped):
            for part in parser.feed(piece):
                answer += part.text if isinstance(part, Content) else ""
                yield part
        for part in parser.end():
            answer += part.text if isinstance(part, Content) else ""
            yield part
        self.messages.append({"role": "assistant", "content": answer})

    def _pieces(self, number: int, start: float, stopped: Callable[[], bool]) -> Iterator[str]:
        stream = TextStream(self._loaded.tokenizer, self._stops, hidden=self._hidden)
        tokens, first, finish = 0, 0.0, None
        while finish is None:
            if stopped():
                self._engine.abort_request(number)
            for output in (candidate for candidate in self._engine.step() if candidate.request_id == number):
                finish = finish or output.finish_reason
                if output.token is None:
                    continue
                tokens += 1
                first = first or time.monotonic() - start
                if output.finish_reason != "stop":
                    yield stream.add(output.token.id)
                if stream.stopped is not None and finish is None:
                    self._engine.abort_request(number)
                    finish = "stop"
        yield stream.end()
        while not self._engine.is_idle:  # steps in flight
            self._engine.step()
        self.figures = GenerationStats(tokens, first, time.monotonic() - start, finish)

    def clear(self) -> None:
        """Clear the history."""
        self.messages, self.shown = [], []

    def take_back(self) -> str:
        """Remove the last answer and its question; returns the question."""
        while self.messages:
            if (last := self.messages.pop())["role"] == "user":
                content = last["content"]
                self.shown = [part["image"] for part in content if "image" in part] if isinstance(content, list) else []
                return str(content if isinstance(content, str) else content[-1]["text"])
        raise NpukitError("There is nothing to retry yet.")

    def set(self, name: str, value: str) -> None:
        """Change a setting of the sampler by its name.

        >>> talk.set("temperature", "0.7")
        """
        name = {"max_new_tokens": "max_tokens"}.get(name, name)
        if name not in SETTINGS:
            raise NpukitError(f"There is no setting {name}: set one of {', '.join(SETTINGS)}.")
        kind = next(str(field.type) for field in fields(SamplingParams) if field.name == name)
        try:
            number: Any = int(value) if kind.startswith("int") else float(value)
        except ValueError:
            raise NpukitError(f"{name} must be a number, not {value!r}.") from None
        if number < 0 and not name.endswith(("presence_penalty", "frequency_penalty")):
            raise NpukitError(f"{name} cannot be negative.")
        self.sampling = replace(self.sampling, **{name: number})

    def save(self, file: Path) -> None:
        """Write the conversation as JSON, in the format of a training row."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        write_json(file, {"messages": [*system, *self.messages]})

    def load(self, file: Path) -> None:
        """Continue a saved conversation."""
        try:
            messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
            messages = [{"role": message["role"], "content": _content(message["content"])} for message in messages]
        except FileNotFoundError:
            raise NpukitError(f"There is no file {file}.") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise NpukitError(f"{file} is not a saved conversation.") from None
        self.system = next((message["content"] for message in messages if message["role"] == "system"), None)
        self.messages = [message for message in messages if message["role"] != "system"]


def _content(content: Any) -> Any:
    return content if isinstance(content, list) else str(content)
