"""What all routes of one server share: the model, the engine's service and the limits."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from npukit.inference.engine.request import SamplingParams
from npukit.inference.grammar import Grammars
from npukit.inference.server.errors import ApiError, bad_request
from npukit.inference.server.lanes import Lanes
from npukit.inference.server.media import Media
from npukit.inference.server.metrics import Metrics
from npukit.inference.service import Service
from npukit.inference.text import BROKEN, decoder, max_characters, special_ids
from npukit.llm.config.use import ServeOptions

if TYPE_CHECKING:
    from npukit.llm.chat.chat import Chat
    from npukit.llm.images.images import Images

T = TypeVar("T")
MAX_PIXEL_BYTES = 4 * 2**30  # of images in all running requests


@dataclass
class Serving:
    """A served model. It belongs to the event loop; use `aside` for slow work."""

    options: ServeOptions
    service: Service
    chat: Chat
    max_model_len: int  # tokens of a prompt and its answer
    vocabulary: int  # the size of the model's output
    defaults: SamplingParams = field(default_factory=SamplingParams)
    adapters: dict[str, Path] = field(default_factory=dict)
    enable_thinking: bool | None = None  # the default of requests; None: the chat template's
    images: Images | None = None  # how images are preprocessed, for a vision model

    def __post_init__(self) -> None:
        options = self.options
        self.media = Media(options.max_images, int(options.max_body * 2**20), options.allowed_media_domains)
        self._pixels = 0  # bytes of images in running requests
        self.tokenizer: Any = self.chat.tokenizer
        self.decode = decoder(self.tokenizer)
        self.special = special_ids(self.tokenizer)
        self.metrics = Metrics(self.options.served_model_name[0])
        self.started = int(time.time())
        self._grammars: Grammars | None = None
        self._tokens: dict[int, tuple[str, bytes]] = {}
        self._taken = 0
        self._lanes, self._lock = Lanes(), threading.Lock()
        # The lanes have a copy, whose settings are set at its first use and do not change.
        self.chat.tokenizer = copy.deepcopy(self.tokenizer)
        self.chat.tokenizer("")
        self.max_characters = max_characters(self.tokenizer, self.max_model_len)

    async def aside(self, raw_request: Request, function: Callable[[], T], has_pictures: bool = False) -> T:
        """Run a function in a thread, so that neither the event loop nor smaller requests wait for it."""
        if has_pictures:
            return await self._lanes.run_with_pictures(function)
        return await self._lanes.run(function, len(await raw_request.body()))

    def grammars(self) -> Grammars:
        """The compiler of constraints; call it in a thread, since the first call takes a second."""
        with self._lock:
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
        """The adapter of a model name; None for the model itself."""
        if model in self.adapters:
            return model
        if model is None or model in self.options.served_model_name:
            return None
        raise ApiError(404, f"The model {model!r} does not exist.", "model", "model_not_found")

    def name(self, model: str | None) -> str:
        """The model's name in answers."""
        return model or self.options.served_model_name[0]

    @contextlib.contextmanager
    def places(self, number: int, pixels: int = 0) -> Iterator[None]:
        """Reserve places for answers with so many bytes of images, or raise the error to retry later."""
        if number > self.options.max_waiting:
            limit = self.options.max_waiting
            raise bad_request(f"This request wants {number} answers, and the server takes {limit} at most.", "n")
        if pixels > MAX_PIXEL_BYTES:
            raise bad_request("The images of this request are too large: send fewer or smaller ones.", "messages")
        if self._taken + number > self.options.max_waiting or self._pixels + pixels > MAX_PIXEL_BYTES:
            raise ApiError(429, "The server is busy: try again in a moment.", code="rate_limit_exceeded")
        self._taken += number
        self._pixels += pixels
        try:
            yield
        finally:
            self._taken -= number
            self._pixels -= pixels
