"""What all routes of one server share: the model, the engine's service and the limits."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from npukit.inference.engine.request import Sampling
from npukit.inference.grammar import Grammars
from npukit.inference.server.errors import ApiError
from npukit.inference.server.metrics import Metrics
from npukit.inference.server.options import ServerOptions
from npukit.inference.service import Service
from npukit.inference.text import BROKEN, decoder, special_ids

if TYPE_CHECKING:
    from npukit.llm.chat.chat import Chat

T = TypeVar("T")


@dataclass
class Serving:
    """A model that is being served. It belongs to the event loop; `aside` does what would hold that up."""

    options: ServerOptions
    service: Service
    chat: Chat
    longest: int  # tokens of a prompt and its answer
    vocabulary: int  # the size of the model's output
    defaults: Sampling = field(default_factory=Sampling)
    adapters: dict[str, Path] = field(default_factory=dict)
    enable_thinking: bool | None = None  # for requests that do not say; None: as the chat template has it

    def __post_init__(self) -> None:
        self.tokenizer: Any = self.chat.tokenizer
        self.decode = decoder(self.tokenizer)
        self.special = special_ids(self.tokenizer)
        self.metrics = Metrics(self.options.names[0])
        self.started = int(time.time())
        self._grammars: Grammars | None = None
        self._tokens: dict[int, tuple[str, bytes]] = {}
        self._taken = 0
        # A tokenizer's settings may change while it encodes: one thread, and a copy of its own.
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self.chat.tokenizer = copy.deepcopy(self.tokenizer)

    async def aside(self, function: Callable[[], T]) -> T:
        """What the function returns; it runs in the tokenizer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, function)

    def grammars(self) -> Grammars:
        """The maker of constraints; call it aside, it takes a second the first time."""
        if self._grammars is None:
            self._grammars = Grammars(self.chat.tokenizer, self.vocabulary, self.chat.stop_ids)
        return self._grammars

    def token(self, number: int) -> tuple[str, bytes]:
        """A token for people and its bytes. Part of a character is written as OpenAI does: bytes:\\xe4."""
        if number not in self._tokens:
            text = self.decode([number])
            data = self.grammars().token_bytes(number) if BROKEN in text else text.encode()
            spelt = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            self._tokens[number] = (spelt if BROKEN in text else text, data)
        return self._tokens[number]

    def adapter(self, model: str | None) -> str | None:
        """The adapter that a model's name stands for; None is the model itself."""
        if model in self.adapters:
            return model
        if model is None or model in self.options.names:
            return None
        raise ApiError(404, f"The model {model!r} does not exist.", "model", "model_not_found")

    def name(self, model: str | None) -> str:
        """What the answers call the model."""
        return model or self.options.names[0]

    @contextlib.contextmanager
    def places(self, number: int) -> Iterator[None]:
        """Places for so many answers, or the advice to come back later."""
        if self._taken + number > self.options.max_waiting:
            raise ApiError(429, "The server is busy: try again in a moment.", code="rate_limit_exceeded")
        self._taken += number
        try:
            yield
        finally:
            self._taken -= number
