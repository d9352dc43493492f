"""Quantise a model to int8, in the format that vllm-ascend serves with `--quantization ascend`.

W8A8_DYNAMIC needs no calibration: each row of a weight has a scale of its own, symmetric around zero, and activations
are quantised token by token while the model runs. Embeddings, norms and the output layer stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.export.folder import check_output, new_folder
from npukit.export.merge import GB, copy_others, make_skeleton
from npukit.export.safetensors import Planned, Progress, write_sharded
from npukit.inference.engine.w8a8 import quantize
from npukit.inference.loading import load
from npukit.llm.config.options import ModelOptions
from npukit.llm.config.use import EngineOptions, Use
from npukit.llm.models.checkpoint import WeightFiles, open_checkpoint
from npukit.llm.models.folder import read_json
from npukit.llm.models.quantized import to_8_bits

DESCRIPTION = "quant_model_description.json"
QUANTISED, PLAIN = "W8A8_DYNAMIC", "FLOAT"
LONGEST = 1024  # tokens that a perplexity is measured on
SAMPLE = Path(__file__).with_name("sample.txt")


@dataclass(frozen=True)
class Quantised:
    """A quantised model that was written."""

    output: Path
    layers: int  # that were quantised
    bytes: int
    bytes_before: int
    error: float  # of the weights, root mean square, relative
    perplexity_before: float
    perplexity_after: float


def quantise(
    model: Path,
    output: Path,
    text: Path | None = None,
    force: bool = False,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> Quantised:
    """Write `model` with the weights of its linear layers in int8, one tensor at a time.

    What that costs is measured as the perplexity of `text`, or of a sample that npukit brings along.

    >>> quantise(Path("qwen2-7b"), Path("qwen2-7b-w8a8")).layers
    196
    """
    check_output(output, force, (model,))
    weights = open_checkpoint(model)
    if "quantization_config" in read_json(model / "config.json") or weights.quantized:
        raise NpukitError(f"{model} is quantised already.")
    linear = set(linear_layers(make_skeleton(model, trust_remote_code), weights))
    if not linear:
        raise NpukitError(f"{model} has no linear layers that can be quantised.")
    tensors = _Tensors(weights, linear)
    plan = tensors.plan()
    total = sum(planned.bytes for planned in plan.values())
    with new_folder(output, total, force, (model,)) as folder:
        write_sharded(folder, plan, tensors.tensor, 5 * GB, progress)
        copy_others(model, (), folder)
        kinds = {name: QUANTISED if tensors.is_quantised(name) else PLAIN for name in plan}
        description = json.dumps({"model_quant_type": QUANTISED, "version": "1.0.0", **kinds}, indent=2)
        (folder / DESCRIPTION).write_text(description + "\n", encoding="utf-8")
        options = ModelOptions(path=str(model), trust_remote_code=trust_remote_code)
        loaded = load(Use(model=options, engine=EngineOptions(allow_pickles=True)), torch.device("cpu"))
        sample = (text or SAMPLE).read_text(encoding="utf-8")
        before, after = perplexities(loaded.model, loaded.tokenizer, sample)
    return Quantised(output, len(linear), total, weights.bytes, tensors.error, before, after)


def linear_layers(skeleton: Any, weights: WeightFiles) -> Iterator[str]:
    """The linear layers of the decoder's blocks, by the name that they have in the files."""
    head = skeleton.get_output_embeddings()
    for name, module in skeleton.named_modules():
        inside = any(part.isdigit() for part in name.split("."))
        if isinstance(module, nn.Linear) and module is not head and inside and f"{name}.weight" in weights.entries:
            yield name


def perplexities(model: Any, tokenizer: Any, text: str) -> tuple[float, float]:
    """The perplexity of a text as the model is, and as it computes in int8. The model is changed by it."""
    before = _perplexity(model, tokenizer, text)
    quantize(model)
    return before, _perplexity(model, tokenizer, text)


def _perplexity(model: Any, tokenizer: Any, text: str) -> float:
    ids = torch.tensor([tokenizer(text)["input_ids"][:LONGEST]], device=model.device)
    with torch.no_grad():
        return float(model(ids, labels=ids).loss.exp())


def _weight(name: str) -> str:
    return name.removesuffix("_scale").removesuffix("_offset")


class _Tensors:
    """The tensors of the quantised model, each when it is asked for."""

    def __init__(self, weights: WeightFiles, linear: set[str]) -> None:
        self._weights, self._linear = weights, linear
        self._square = self._square_error = 0.0

    def plan(self) -> dict[str, Planned]:
        plan = {}
        for name, entry in self._weights.entries.items():
            if not self.is_quantised(name):
                plan[name] = Planned(entry.shape, entry.dtype)
                continue
            column = (entry.shape[0], 1)
            plan[name] = Planned(entry.shape, torch.int8)
            for suffix in ("_scale", "_offset"):
                plan[name + suffix] = Planned(column, torch.float32)
        return plan

    def tensor(self, name: str) -> Tensor:
        """A tensor; scales and offsets belong to the weight of their layer."""
        weight = self._weights.read(_weight(name))
        if not self.is_quantised(name):
            return weight
        values, scale = to_8_bits(weight, torch.int8)
        if name.endswith("_scale"):
            return scale
        if name.endswith("_offset"):
            return torch.zeros_like(scale)  # symmetric
        exact = weight.float()
        self._square += float(exact.square().sum())
        self._square_error += float((values * scale - exact).square().sum())
        return values

    def is_quantised(self, name: str) -> bool:
        """Whether it is the weight of a quantised layer, or its scale or offset; a bias is not."""
        layer, _, own = _weight(name).rpartition(".")
        return layer in self._linear and own == "weight"

    @property
    def error(self) -> float:
        return (self._square_error / self._square) ** 0.5 if self._square else 0.0
