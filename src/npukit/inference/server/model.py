"""Load the model that is to be served."""

from __future__ import annotations

from pathlib import Path

from npukit.inference.engine import Engine, EngineOptions
from npukit.inference.server.options import ServeOptions
from npukit.inference.server.serving import Serving
from npukit.inference.service import Service


def load(options: ServeOptions) -> Serving:
    """The model on its device, with its adapters, ready to be served."""
    import torch

    from npukit.llm.chat.chat import load_chat
    from npukit.llm.config.options import ModelOptions
    from npukit.llm.models.loading import load_model, locate

    wanted = ModelOptions(path=options.model, trust_remote_code=options.trust_remote_code)
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = load_model(wanted, locate(wanted), torch.float32, None).to(device)
    engine = Engine(model, EngineOptions(longest=options.longest, rows=options.rows, memory=options.memory))
    for name, path in options.adapters.items():
        engine.load_adapter(name, Path(path))
    chat = load_chat(wanted, options.template, options.system)
    adapters = {name: Path(path) for name, path in options.adapters.items()}
    return Serving(options.server, Service(engine), chat, engine.longest, engine.words, adapters=adapters)
