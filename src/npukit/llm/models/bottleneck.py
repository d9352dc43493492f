"""Bottleneck adapters (Houlsby et al., 2019) as ms-swift makes and saves them.

Behind the feed-forward part of every layer a narrow network is added to its result. It cannot be merged into the
weights, so a model is used with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.llm.models.checkpoint import open_checkpoint
from npukit.llm.models.folder import ADAPTER, BELOW, adapter_folder, read_json
from npukit.report.writing import write_json

KIND = "ADAPTER"  # ms-swift's `swift_type`
PART = "adapter_default"  # what the network is called in the module that it follows
FEED_FORWARD = ("mlp", "feed_forward")
WEIGHTS = "adapter_model.safetensors"


class Bottleneck(nn.Module):
    """Down to a few numbers, through an activation, and up again; the input is added."""

    def __init__(self, hidden: int, width: int, activation: str) -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        self.linear1 = nn.Linear(hidden, width)
        self.act = ACT2FN[activation]
        self.linear2 = nn.Linear(width, hidden)
        self.is_used = True
        for linear in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.normal_(linear.bias, std=1e-6)

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = self.linear2(self.act(self.linear1(hidden.to(self.linear1.weight.dtype))))
        return (hidden.to(made.dtype) + made).to(hidden.dtype)


def add_bottlenecks(model: Any, layers: list[nn.Module], width: int, activation: str) -> None:
    """Freeze a model and give new adapters to its layers."""
    names_of = {id(module): name for name, module in model.named_modules()}
    parts = [next((part for part in FEED_FORWARD if hasattr(layer, part)), None) for layer in layers]
    if None in parts or not parts:
        raise NpukitError(
            f"tuning.method bottleneck: the layers of {model.config.model_type} have no {' or '.join(FEED_FORWARD)}."
        )
    names = [f"{names_of[id(layer)]}.{part}" for layer, part in zip(layers, parts, strict=True)]
    hidden = model.config.get_text_config().hidden_size
    _follow(model, names, hidden, width, activation)


def load_bottlenecks(model: Any, folder: Path) -> None:
    """Freeze a model and give it the adapters in a folder, npukit's or ms-swift's."""
    files = adapter_folder(folder)
    config, weights = read_json(files / ADAPTER), open_checkpoint(files, "adapter_model")
    names = sorted({name.partition(f".{PART}.")[0] for name in weights.entries})
    known = dict(model.named_modules())
    if missing := [name for name in names if name not in known]:
        raise NpukitError(f"{folder} changes {missing[0]}, but the model has no such part: is this its base model?")
    _follow(model, names, config["dim"], config["adapter_length"], config["act_layer"])
    for name in weights.entries:
        parameter, value = model.get_parameter(name), weights.read(name)
        if parameter.shape != value.shape:
            raise NpukitError(f"{folder}: {name} is {tuple(value.shape)}, not {tuple(parameter.shape)}: save it again.")
        parameter.data = value.to(parameter)


def _follow(model: Any, names: list[str], hidden: int, width: int, activation: str) -> None:
    model.requires_grad_(False)
    for name in names:
        part = model.get_submodule(name)
        setattr(part, PART, Bottleneck(hidden, width, activation).to(next(part.parameters()).device))
        part.register_forward_hook(_add)
    model.disable_adapter = partial(_without, model)
    model.bottlenecks = {
        "swift_type": KIND,
        "dim": hidden,
        "adapter_length": width,
        "act_layer": activation,
        "target_modules": re.escape(re.sub(r"\.\d+\.", ".{}.", names[0])).replace(re.escape("{}"), r"\d+"),
        "hidden_pos": 0,
        "method_name": "forward",
        "base_model_name_or_path": model.name_or_path,
    }


def _add(module: Any, _args: Any, result: Any) -> Any:
    """Some feed-forward parts with experts also return how they were chosen."""
    adapter = getattr(module, PART)
    if not adapter.is_used:
        return result
    return (adapter(result[0]), *result[1:]) if isinstance(result, tuple) else adapter(result)


@contextmanager
def _without(model: nn.Module) -> Iterator[None]:
    adapters = [module for module in model.modules() if isinstance(module, Bottleneck)]
    for adapter in adapters:
        adapter.is_used = False
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.is_used = True


def save_bottlenecks(config: dict[str, Any], state: dict[str, Tensor], folder: Path) -> None:
    """Write adapters where ms-swift looks for them."""
    from safetensors.torch import save_file

    (folder / BELOW).mkdir(exist_ok=True)
    save_file({name: value.contiguous() for name, value in state.items()}, folder / BELOW / WEIGHTS, {"format": "pt"})
    write_json(folder / BELOW / ADAPTER, config)
