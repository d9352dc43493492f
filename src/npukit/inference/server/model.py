"""Load the model that is to be served."""

from __future__ import annotations

from dataclasses import replace

from npukit.inference.engine import EngineOptions
from npukit.inference.loading import load, start_engine
from npukit.inference.server.options import ServeOptions
from npukit.inference.server.serving import Serving
from npukit.inference.service import Service
from npukit.inference.task import Wanted
from npukit.launch.devices import is_simulated
from npukit.llm.models.folder import find_model


def load_serving(options: ServeOptions) -> Serving:
    """The model on its device, with its adapters, ready to be served."""
    adapters = {name: find_model(path) for name, path in options.adapters.items()}
    loaded = load(
        Wanted(
            options.model,
            options.merged,
            dtype=options.dtype,
            template=options.template,
            system=options.system,
            trust_remote_code=options.trust_remote_code,
            allow_pickles=options.allow_pickles,
        )
    )
    graphs = False if options.eager else None
    size = EngineOptions(
        longest=options.longest, rows=options.rows, memory=options.memory, graphs=graphs, lookup=options.lookup
    )
    engine = start_engine(loaded, size)
    for name, folder in adapters.items():
        engine.load_adapter(name, folder)
    if not is_simulated():  # there, recording all graphs takes longer than the first requests would
        engine.warm_up()
    # Greedy is what a model's file says by default; the default of this API is to sample.
    defaults = loaded.defaults if loaded.defaults.temperature else replace(loaded.defaults, temperature=1.0)
    return Serving(
        options.server,
        Service(engine),
        loaded.chat,
        engine.longest,
        engine.words,
        replace(defaults, **options.sampling),
        adapters,
        options.enable_thinking,
    )
