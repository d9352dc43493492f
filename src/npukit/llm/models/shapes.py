"""The shapes of a model's weights, without loading any: from safetensors' headers, else from config.json."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from npukit.llm.config.options import ModelOptions

Shapes = dict[str, tuple[int, ...]]
LARGEST_HEADER = 100_000_000  # bytes; safetensors itself allows no more


@dataclass(frozen=True)
class Model:
    """What is known of a model before it is loaded."""

    shapes: Shapes
    hidden: int
    layers: int
    intermediate: int
    keys: int  # width of keys, and of values
    vocabulary: int

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.shapes.values()))

    def linear(self) -> Shapes:
        """The matrices that an adapter can be put on: inside the layers, by the name of their module."""
        return {
            name.removesuffix(".weight"): shape
            for name, shape in self.shapes.items()
            if len(shape) == 2 and name.endswith(".weight") and _layer_of(name) is not None
        }

    def of_layers(self, count: int) -> int:
        """Parameters of the last `count` layers."""
        numbers = {name: _layer_of(name) for name in self.shapes}
        first = self.layers - count
        return sum(
            prod(self.shapes[name]) for name, number in numbers.items() if number is not None and number >= first
        )


def _layer_of(name: str) -> int | None:
    """
    >>> _layer_of("model.layers.11.mlp.up_proj.weight")
    11
    """
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def look_at(options: ModelOptions) -> Model | None:
    """The model in a local folder; None where it is on a hub, or of a kind that is not known and without weights."""
    folder = Path(options.path).expanduser()
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = {**config, **config.get("text_config", {})}
        shapes = {} if options.from_config else read_headers(folder)
        return _model(config, shapes or _formula(config))
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def read_headers(folder: Path) -> Shapes:
    """The names and shapes of all tensors in a folder's safetensors files."""
    headers = [_header(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: tuple(each["shape"]) for header in headers for name, each in header.items()}


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > LARGEST_HEADER:
            raise ValueError(f"{path} is no safetensors file")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header


def broken_weights(folder: Path) -> list[str]:
    """Sentences about weights that were not downloaded to their end."""
    sentences = []
    for path in sorted(folder.glob("*.safetensors")):
        try:
            header = _header(path)
            end = max((each["data_offsets"][1] for each in header.values()), default=0)
            with path.open("rb") as file:
                whole = 8 + struct.unpack("<Q", file.read(8))[0] + end
            if path.stat().st_size < whole:
                sentences.append(f"{path} has {path.stat().st_size:,} of {whole:,} bytes: download it again.")
        except (ValueError, KeyError, TypeError, struct.error):
            sentences.append(f"{path} is no safetensors file, or only its beginning: download it again.")
    return sentences + _missing_parts(folder)


def _missing_parts(folder: Path) -> list[str]:
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        missing = sorted({name for name in index["weight_map"].values() if not (folder / name).is_file()})
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{folder / 'model.safetensors.index.json'} cannot be read: download it again."]
    return [f"{folder} lacks {', '.join(missing[:3])}{' and others' * (len(missing) > 3)}: download it."] * bool(
        missing
    )


def _model(config: Mapping[str, Any], shapes: Shapes) -> Model:
    hidden = config.get("hidden_size") or config["n_embd"]
    heads = config.get("num_attention_heads") or config["n_head"]
    width = config.get("head_dim") or hidden // heads
    return Model(
        shapes,
        hidden,
        config.get("num_hidden_layers") or config["n_layer"],
        config.get("intermediate_size") or config.get("n_inner") or 4 * hidden,
        width * (config.get("num_key_value_heads") or heads),
        config["vocab_size"],
    )


def _formula(config: Mapping[str, Any]) -> Shapes:
    return FORMULAS[config["model_type"]](config)


def _llama(config: Mapping[str, Any]) -> Shapes:
    """Llama, and those that differ from it in biases and norms alone."""
    model = _model(config, {})
    kind, hidden, inner = config["model_type"], model.hidden, model.intermediate
    queries = (config.get("head_dim") or hidden // config["num_attention_heads"]) * config["num_attention_heads"]
    bias = config.get("attention_bias", False) or kind == "qwen2"
    shapes: Shapes = {"model.embed_tokens.weight": (model.vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (model.vocabulary, hidden)
    gated = (
        {"gate_up_proj": (2 * inner, hidden)}
        if kind in ("glm", "glm4", "phi3")
        else {"gate_proj": (inner, hidden), "up_proj": (inner, hidden)}
    )
    for number in range(model.layers):
        layer = f"model.layers.{number}."
        for name, width in (("q_proj", queries), ("k_proj", model.keys), ("v_proj", model.keys)):
            shapes[f"{layer}self_attn.{name}.weight"] = (width, hidden)
            if bias:
                shapes[f"{layer}self_attn.{name}.bias"] = (width,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, queries)
        shapes |= {f"{layer}mlp.{name}.weight": shape for name, shape in gated.items()}
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, inner)
        for name in NORMS.get(kind, ("input_layernorm", "post_attention_layernorm")):
            shapes[f"{layer}{name}.weight"] = (hidden,)
        if kind == "qwen3":
            shapes |= {f"{layer}self_attn.{name}.weight": (config["head_dim"],) for name in ("q_norm", "k_norm")}
    return shapes


NORMS = {
    "glm4": ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
}


def _gpt2(config: Mapping[str, Any]) -> Shapes:
    model = _model(config, {})
    hidden = model.hidden
    shapes: Shapes = {
        "transformer.wte.weight": (model.vocabulary, hidden),
        "transformer.wpe.weight": (config.get("n_positions", 1024), hidden),
        "transformer.ln_f.weight": (hidden,),
        "transformer.ln_f.bias": (hidden,),
    }
    parts = {"attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden)}
    parts |= {"mlp.c_fc": (hidden, model.intermediate), "mlp.c_proj": (model.intermediate, hidden)}
    for number in range(model.layers):
        layer = f"transformer.h.{number}."
        for name, shape in parts.items():
            shapes |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{layer}{name}.weight": (hidden,), f"{layer}{name}.bias": (hidden,)}
    return shapes


FORMULAS: dict[str, Callable[[Mapping[str, Any]], Shapes]] = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral", "glm", "glm4"), _llama),
    "gpt2": _gpt2,
}
