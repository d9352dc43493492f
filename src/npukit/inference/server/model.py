"""The model that is to be served: its engine in a process of its own, its tokenizer here."""

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
    """The model on its device, with its adapters, ready to be served."""
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
    # Greedy is what a model's file says by default; the default of this API is to sample.
    defaults = defaults if defaults.temperature else replace(defaults, temperature=1.0)
    return Serving(
        use.serve,
        Service(engine),
        chat,
        engine.longest,
        engine.words,
        replace(defaults, **use.sampling.given()),
        adapters,
        use.chat.enable_thinking,
        images,
    )


def _make_engine(use: Use) -> tuple[Any, Callable[[], Any]]:
    """The engine, and what makes its grammars, in the engine's process."""
    from npukit.inference.grammar import Grammars
    from npukit.inference.loading import load, start_engine

    loaded = load(use)
    engine = start_engine(loaded, use.engine)
    if not is_simulated():  # there, recording all graphs takes longer than the first requests would
        engine.warm_up()
    return engine, functools.cache(lambda: Grammars(loaded.tokenizer, engine.words, loaded.end_tokens))
