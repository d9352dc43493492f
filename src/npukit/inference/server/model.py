"""Load the model that is to be served."""

from __future__ import annotations

from dataclasses import replace

from npukit.inference.loading import load, start_engine
from npukit.inference.server.serving import Serving
from npukit.inference.service import Service
from npukit.launch.devices import is_simulated
from npukit.llm.config.use import Use
from npukit.llm.models.folder import find_model


def load_serving(use: Use) -> Serving:
    """The model on its device, with its adapters, ready to be served."""
    adapters = {name: find_model(path) for name, path in use.named.items()}
    loaded = load(use)
    engine = start_engine(loaded, use.engine)
    for name, folder in adapters.items():
        engine.load_adapter(name, folder)
    if not is_simulated():  # there, recording all graphs takes longer than the first requests would
        engine.warm_up()
    # Greedy is what a model's file says by default; the default of this API is to sample.
    defaults = loaded.defaults if loaded.defaults.temperature else replace(loaded.defaults, temperature=1.0)
    return Serving(
        use.serve,
        Service(engine),
        loaded.chat,
        engine.longest,
        engine.words,
        replace(defaults, **use.sampling.given()),
        adapters,
        use.chat.enable_thinking,
    )
