"""The routes for models, adapters, tokens, health and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from npukit import __version__
from npukit.errors import NpukitError
from npukit.inference.engine.adapters import read_adapter
from npukit.inference.server.body import make_router
from npukit.inference.server.errors import ApiError, bad_request
from npukit.inference.server.schema import AdapterName, AdapterRequest, DetokenizeRequest, TokenizeRequest
from npukit.inference.server.serving import Serving


def routes(serving: Serving) -> APIRouter:
    """These routes; those that change adapters only if the options allow it."""
    router = make_router()

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = [*serving.options.served_model_name, *serving.adapters]
        return {"object": "list", "data": [_model(serving, name) for name in names]}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        serving.adapter(name)
        return _model(serving, name)

    @router.post("/tokenize")
    async def tokenize(request: TokenizeRequest, raw_request: Request) -> dict[str, Any]:
        serving.adapter(request.model)
        ids = await serving.aside(raw_request, lambda: _ids(serving, request))
        names = serving.tokenizer.convert_ids_to_tokens(ids) if request.return_token_strs else None
        return {"count": len(ids), "max_model_len": serving.max_model_len, "tokens": ids, "token_strs": names}

    @router.post("/detokenize")
    async def detokenize(request: DetokenizeRequest, raw_request: Request) -> dict[str, str]:
        serving.adapter(request.model)
        if any(token >= serving.vocabulary for token in request.tokens):
            raise bad_request(f"The model has {serving.vocabulary} tokens.", "tokens")
        return {"prompt": await serving.aside(raw_request, lambda: serving.decode(request.tokens))}

    @router.get("/health")
    @router.get("/ping", include_in_schema=False)
    async def health() -> Response:
        if serving.service.failure is not None:
            raise ApiError(503, "The engine has stopped; the server's log says why.")
        return PlainTextResponse("")

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/metrics")
    async def metrics() -> Response:
        stats = await serving.service.call(lambda: serving.service.engine.stats())
        return PlainTextResponse(serving.metrics.text(stats), media_type="text/plain; version=0.0.4")

    if serving.options.allow_adapter_changes:
        _adapter_routes(router, serving)
    return router


def _adapter_routes(router: APIRouter, serving: Serving) -> None:
    @router.post("/v1/load_lora_adapter")
    async def load(request: AdapterRequest, raw_request: Request) -> Response:
        name, path = request.lora_name, Path(request.lora_path)
        if name in serving.options.served_model_name or (name in serving.adapters and not request.load_inplace):
            raise bad_request(f"There is already a model named {name!r}.", "lora_name")
        try:
            adapter = await serving.aside(raw_request, lambda: read_adapter(name, path))
            await serving.service.call(lambda: serving.service.engine.add_adapter(adapter, replace=True))
        except NpukitError as error:
            raise bad_request(str(error), "lora_path") from error
        serving.adapters[name] = path
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    @router.post("/v1/unload_lora_adapter")
    async def unload(request: AdapterName) -> Response:
        name = request.lora_name
        if serving.adapters.pop(name, None) is None:
            raise ApiError(404, f"There is no adapter {name!r}.", "lora_name", "model_not_found")
        await serving.service.call(lambda: serving.service.engine.unload_adapter(name))
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


def _model(serving: Serving, name: str) -> dict[str, Any]:
    is_adapter = name in serving.adapters
    return {
        "id": name,
        "object": "model",
        "created": serving.started,
        "owned_by": "npukit",
        "root": serving.options.served_model_name[0],
        "parent": serving.options.served_model_name[0] if is_adapter else None,
        "max_model_len": serving.max_model_len,
        "input_modalities": ["text", *(serving.images.markers if serving.images else ())],
    }


def _ids(serving: Serving, request: TokenizeRequest) -> list[int]:
    if request.messages is not None:
        return serving.chat.prompt(
            request.messages,
            tools=[tool.model_dump(exclude_none=True) for tool in request.tools or ()] or None,
            add_generation_prompt=request.add_generation_prompt is not False,
            template_kwargs=request.chat_template_kwargs,
        ).ids
    special = request.add_special_tokens is not False
    ids: list[int] = serving.chat.tokenizer.encode(request.prompt, add_special_tokens=special)
    return ids
