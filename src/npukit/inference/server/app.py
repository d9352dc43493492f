"""The application of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from npukit import __version__
from npukit.inference.server import chat, completions, more, page, responses
from npukit.inference.server.errors import answer_errors
from npukit.inference.server.guard import Guard
from npukit.inference.server.metrics import Metrics
from npukit.inference.server.serving import Serving
from npukit.llm.config.use import ServeOptions


def make_app(serving: Serving) -> FastAPI:
    """The application of one model, with all routes."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with serving.service:
            yield

    # FastAPI's pages of documentation load scripts from another host.
    app = FastAPI(title="npukit serve", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    for routes in (chat, completions, responses, more, page):
        app.include_router(routes.routes(serving))
    return finish_app(app, serving.options, serving.metrics)


def finish_app(app: FastAPI, options: ServeOptions, metrics: Metrics) -> FastAPI:
    """Add the middleware and error handlers that every server has."""
    answer_errors(app)
    app.add_middleware(Guard, options=options, metrics=metrics)
    if options.cors:  # outermost, so that a browser can read errors too
        app.add_middleware(CORSMiddleware, allow_origins=options.cors, allow_methods=["*"], allow_headers=["*"])
    return app
