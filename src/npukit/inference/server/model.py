"""The served model: its engine in another process, its tokenizer in this one."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from npukit.inference.remote import RemoteEngine
from npukit.inference.server.serving import Serving
from npukit.inference.service import Service
from npukit.launch.devices import is_simulated
from npukit.llm.config.use import Use
from npukit.llm.models.folder import find_model


def load_serving(use: Use, listener: socket.socket) -> Serving:
    """Load a model and its adapters for serving."""
    adapters = {name: find_model(path) for name, path in use.named.items()}
    engine = RemoteEngine(functools.partial(_make_engine, use), listener)
    try:
        from npukit.inference.loading import load_chat, load_pictures

        chat, defaults = load_chat(use)
        images = load_pictures(use)
        if images is not None:
            images.max_video_seconds = use.serve.max_video_seconds
        engine.wait_until_ready()
        for name, folder in adapters.items():
            engine.load_adapter(name, folder)
    except BaseException:
        engine.close()
        raise
    # A model without sampling settings would be greedy, but the default of this API is to sample.
    defaults = defaults if defaults.temperature else replace(defaults, temperature=1.0)
    return Serving(
        use.serve,
        Service(engine),
        chat,
        engine.max_model_len,
        engine.vocab_size,
        replace(defaults, **use.sampling.given()),
        adapters,
        use.chat.enable_thinking,
        images,
    )


def _make_engine(use: Use) -> tuple[Any, Callable[[], Any]]:
    """The engine and its compiler of grammars, in the engine's process."""
    from npukit.inference.grammar import Grammars
    from npukit.inference.loading import load, start_engine

    loaded = load(use)
    engine = start_engine(loaded, use.engine)
    if not is_simulated():  # where recording all graphs takes longer than the first requests
        engine.warm_up()
    return engine, functools.cache(lambda: Grammars(loaded.tokenizer, engine.vocab_size, loaded.end_tokens))
