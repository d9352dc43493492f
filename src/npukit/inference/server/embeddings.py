"""/v1/embeddings: the server of a model that turns texts into vectors."""

from __future__ import annotations

import asyncio
import base64
import copy
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import Field
from torch import Tensor

from npukit import __version__
from npukit.inference.embedding import Embedder
from npukit.inference.server.app import finish_app
from npukit.inference.server.body import make_router
from npukit.inference.server.errors import ApiError, bad_request, too_long
from npukit.inference.server.lanes import Lanes
from npukit.inference.server.metrics import Metrics
from npukit.inference.server.schema import Count, Lenient, TokenIds
from npukit.inference.text import max_characters
from npukit.llm.config.use import ServeOptions

MAX_INPUTS = 2048  # texts of a request; OpenAI's limit, too
Ids = Annotated[TokenIds, Field(min_length=1)]
Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)]
ManyIds = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)]


class EmbeddingRequest(Lenient):
    """Texts, or their token ids."""

    input: str | Texts | Ids | ManyIds
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Count, Field(ge=1)] | None = None
    user: str | None = None


class Embedding:
    """An embedder with the thread that computes; one request at a time, the others wait their turn."""

    def __init__(self, embedder: Embedder, options: ServeOptions) -> None:
        self.embedder, self.options = embedder, options
        self.started = int(time.time())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._waiting = 0
        self._lanes, self._tokenizer = Lanes(), copy.deepcopy(embedder.tokenizer)
        self._tokenizer("")  # sets what it is used with, so that threads can share it
        self._max_characters = max_characters(self._tokenizer, embedder.longest)

    async def answer(self, request: EmbeddingRequest, raw_request: Request) -> dict[str, Any]:
        """Vectors in the order of the texts."""
        if request.model is not None and request.model not in self.options.served_model_name:
            raise ApiError(404, f"The model {request.model!r} does not exist.", "model", "model_not_found")
        if self._waiting >= self.options.max_waiting:
            raise ApiError(429, "The server is busy: try again in a moment.", code="rate_limit_exceeded")
        self._waiting += 1
        try:
            size = len(await raw_request.body())
            texts = await self._lanes.run(lambda: self._ids(request), size)
            loop = asyncio.get_running_loop()
            vectors = await loop.run_in_executor(self._thread, self.embedder.embed, texts)
        finally:
            self._waiting -= 1
        if request.dimensions not in (None, vectors.shape[1]):
            raise bad_request(f"This model's vectors have {vectors.shape[1]} dimensions.", "dimensions")
        tokens = sum(map(len, texts))
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _encoded(vector, request.encoding_format)}
                for index, vector in enumerate(vectors)
            ],
            "model": request.model or self.options.served_model_name[0],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def _ids(self, request: EmbeddingRequest) -> list[list[int]]:
        inputs: list[Any] = [request.input] if isinstance(request.input, str) else request.input
        if isinstance(inputs[0], int):
            inputs = [inputs]
        for text in inputs:
            if isinstance(text, str) and len(text) > self._max_characters:
                raise too_long(self.embedder.longest, len(text))
        texts = [self._tokenizer(text)["input_ids"] if isinstance(text, str) else text for text in inputs]
        if any(not 0 < len(text) <= self.embedder.longest for text in texts):
            raise bad_request(f"A text must have 1 to {self.embedder.longest} tokens.", "input")
        words = self.embedder.model.get_input_embeddings().weight.shape[0]
        if any(token >= words for text in texts for token in text):
            raise bad_request(f"The model has {words} tokens.", "input")
        return texts


def make_embedding_app(embedder: Embedder, options: ServeOptions) -> FastAPI:
    """The application of one embedding model."""
    embedding, router = Embedding(embedder, options), make_router()

    @router.post("/v1/embeddings")
    async def create(request: EmbeddingRequest, raw_request: Request) -> dict[str, Any]:
        return await embedding.answer(request, raw_request)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        own = {"object": "model", "created": embedding.started, "owned_by": "npukit", "max_model_len": embedder.longest}
        return {"object": "list", "data": [{"id": name, **own} for name in options.served_model_name]}

    @router.get("/health")
    async def health() -> str:
        return ""

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    app = FastAPI(title="npukit serve", version=__version__, docs_url=None, redoc_url=None)
    app.include_router(router)
    return finish_app(app, options, Metrics(options.served_model_name[0]))


def _encoded(vector: Tensor, format: str) -> list[float] | str:
    if format == "float":
        return vector.tolist()
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
