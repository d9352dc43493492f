"""Convert quantised layers to ordinary weights: GPTQ, AWQ, compressed-tensors, FP8, bitsandbytes and msModelSlim.

The kernels for these formats require CUDA, but their numbers do not. A quantised layer consists of a few tensors of
small integers with scales, from which its weight is computed when it is read. Such a model can therefore be served,
exported and fine-tuned on any device, with the memory that it needs in 16 bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npukit.errors import NpukitError
from npukit.llm.models.folder import read_json

ASCEND = "quant_model_description.json"  # written by msModelSlim and by `npukit export --w8a8`
AWQ_COLUMNS = (0, 4, 1, 5, 2, 6, 3, 7)  # the positions of the columns among the eight of a word
Shape = tuple[int, ...]
Settings = Mapping[str, Any]  # "quantization_config" of config.json


@dataclass(frozen=True)
class GroupedWeight:
    """Non-negative integers. The inputs of a group share a scale and a zero point per output."""

    numbers: Tensor  # [outputs, inputs]
    scale: Tensor  # [outputs, groups]
    zero: Tensor  # [outputs, groups]
    group: Tensor  # [inputs], the group of each input
    bits: int

    def dequantized(self) -> Tensor:
        """The weight in fp32."""
        return (self.numbers - self.zero.float()[:, self.group]) * self.scale.float()[:, self.group]


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer that is saved as several tensors, its parts: `layer["qweight"]`."""

    parts: Mapping[str, str]  # the names of the tensors, by their suffixes
    sizes: Mapping[str, Shape]  # the shapes of the parts
    settings: Settings
    format: QuantizedFormat
    read: Callable[[str], Tensor]

    def __getitem__(self, part: str) -> Tensor:
        return self.read(self.parts[part])

    @property
    def shape(self) -> Shape:
        """The shape of the weight, from the headers of the files if possible."""
        return self.format.shape(self)

    def weight(self) -> Tensor:
        """The weight in fp32."""
        weight = self.format.weight(self)
        return weight.dequantized() if isinstance(weight, GroupedWeight) else weight


@dataclass(frozen=True)
class QuantizedFormat:
    """How a tool saves quantised layers."""

    marks: tuple[str, ...]  # a part that only quantised layers have
    shape: Callable[[QuantizedLayer], Shape]
    weight: Callable[[QuantizedLayer], Tensor | GroupedWeight]


def quantized_layers(
    folder: Path, shapes: Mapping[str, Shape], read: Callable[[str], Tensor]
) -> dict[str, QuantizedLayer]:
    """The quantised layers of a checkpoint with tensors of these shapes; none if transformers reads them itself.

    >>> list(quantized_layers(Path("qwen2-7b-awq"), shapes, read))[0]
    'model.layers.0.mlp.down_proj'
    """
    settings = _settings(folder, shapes)
    if (kind := FORMATS.get(settings.get("quant_method", ""))) is None:
        return {}
    layers = {name.removesuffix(f".{mark}") for name in shapes for mark in kind.marks if name.endswith(f".{mark}")}
    parts: dict[str, dict[str, str]] = {layer: {} for layer in sorted(layers)}
    for name in shapes:
        layer = next((prefix for prefix in _prefixes(name) if prefix in layers), None)
        if layer and not name.endswith(".bias"):
            parts[layer][name.removeprefix(f"{layer}.")] = name
    return {
        layer: QuantizedLayer(own, {part: shapes[name] for part, name in own.items()}, settings, kind, read)
        for layer, own in parts.items()
    }


def _prefixes(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _settings(folder: Path, names: Iterable[str]) -> Settings:
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    settings: Settings = config.get("quantization_config") or {}
    layout, readable = _layout(settings)
    if layout not in readable:
        raise NpukitError(f"{folder} is quantised in the format {layout}: only {', '.join(readable)} can be read.")
    if settings or not (folder / ASCEND).is_file():
        return settings
    saved, kinds = set(names), read_json(folder / ASCEND)
    unknown = {kind for name, kind in kinds.items() if name in saved} - {"FLOAT", "W8A8_DYNAMIC"}
    if unknown:
        raise NpukitError(f"{folder} has weights of the kind {min(unknown)}: only W8A8_DYNAMIC can be read.")
    return {"quant_method": "ascend"}


def _layout(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """The variant of a tool's format, if it is supported."""
    if settings.get("quant_method") == "awq":
        return settings.get("version", "gemm").lower(), ("gemm",)
    if settings.get("quant_method") == "compressed-tensors":
        return settings["format"], ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
    return "", ("",)


def _unpacked(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Unpack the integers in 32-bit words, the lowest bits first."""
    if bits not in (2, 4, 8):
        raise NpukitError(f"The model is quantised to {bits} bits: only 2, 4 and 8 can be read.")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32).view(-1, *(1,) * (packed.dim() - 1 - dim))
    return (packed.unsqueeze(dim + 1) >> shifts & (1 << bits) - 1).flatten(dim, dim + 1)


def _even_groups(inputs: int, scale: Tensor) -> Tensor:
    return torch.arange(inputs) // (inputs // scale.shape[1])


def _gptq(layer: QuantizedLayer) -> GroupedWeight:
    """Packed along the inputs. Zero points are stored minus one, except in the second version of the format."""
    group, packed = layer["g_idx"].long(), layer["qweight"]
    bits = 32 * packed.shape[0] // len(group)
    zero = _unpacked(layer["qzeros"], bits, 1) + (layer.settings.get("checkpoint_format") != "gptq_v2")
    return GroupedWeight(_unpacked(packed, bits, 0).T, layer["scales"].T, zero.T, group, bits)


def _awq(layer: QuantizedLayer) -> GroupedWeight:
    """Packed along the outputs, in an order for a CUDA kernel."""

    def columns(packed: Tensor) -> Tensor:
        return _unpacked(packed, 4, 1).view(len(packed), -1, 8)[:, :, AWQ_COLUMNS].flatten(1).T

    numbers, scale = columns(layer["qweight"]), layer["scales"].T
    return GroupedWeight(numbers, scale, columns(layer["qzeros"]), _even_groups(numbers.shape[1], scale), 4)


def _compressed_tensors(layer: QuantizedLayer) -> Tensor | GroupedWeight:
    """Packed along the inputs, or plain 8-bit numbers."""
    scale = layer["weight_scale"]
    if "weight_packed" not in layer.parts:
        zero = layer["weight_zero_point"].float() if "weight_zero_point" in layer.parts else 0.0
        groups = layer.settings["config_groups"].values()
        blocks = next(filter(None, (group["weights"].get("block_structure") for group in groups)), None)
        return _scaled(layer["weight"].float() - zero, scale, blocks)
    packed, inputs = layer["weight_packed"], int(layer["weight_shape"][1])
    bits = 32 * packed.shape[1] // inputs
    if "weight_zero_point" in layer.parts:
        zeros = _unpacked(layer["weight_zero_point"], bits, 0)[: len(scale)]
    else:
        zeros = torch.full_like(scale, 1 << bits - 1)
    group = layer["weight_g_idx"].long() if "weight_g_idx" in layer.parts else _even_groups(inputs, scale)
    return GroupedWeight(_unpacked(packed, bits, 1)[:, :inputs], scale, zeros, group, bits)


def _fp8(layer: QuantizedLayer) -> Tensor:
    """8-bit floating-point numbers with a scale per block. Although the scale is called inverse, it multiplies."""
    return _scaled(layer["weight"].float(), layer["weight_scale_inv"], layer.settings.get("weight_block_size"))


def _scaled(numbers: Tensor, scale: Tensor, blocks: list[int] | None) -> Tensor:
    scale = scale.float()
    if blocks and scale.dim() == 2:
        height, width = numbers.shape
        scale = scale.repeat_interleave(blocks[0], 0)[:height].repeat_interleave(blocks[1], 1)[:, :width]
    return numbers * (scale[:, None] if scale.dim() == 1 and len(scale) > 1 else scale)


def _bitsandbytes(layer: QuantizedLayer) -> Tensor:
    """4-bit indices into a table of values, whose scales may be quantised in turn; or rows of int8."""
    if "SCB" in layer.parts:
        return layer["weight"].float() * layer["SCB"].float()[:, None] / 127
    state = _state(layer)
    scale = layer["weight.absmax"]
    if "weight.nested_absmax" in layer.parts:
        values = layer["weight.nested_quant_map"].float()[scale.long()]
        outer = layer["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])[: len(values)]
        scale = values * outer + state["nested_offset"]
    packed = layer["weight"].flatten()
    numbers = torch.stack([packed >> 4, packed & 15], dim=1).flatten()
    values = layer["weight.quant_map"].float()[numbers.long()]
    return (values * scale.repeat_interleave(state["blocksize"])[: len(values)]).view(state["shape"])


def _state(layer: QuantizedLayer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(
        bytes(layer[next(part for part in layer.parts if ".quant_state." in part)].tolist())
    )
    return state


def _ascend(layer: QuantizedLayer) -> Tensor:
    return (layer["weight"].float() - layer["weight_offset"]) * layer["weight_scale"]


def _saved_shape(layer: QuantizedLayer) -> Shape:
    return layer.sizes["weight"]


FORMATS = {
    "gptq": QuantizedFormat(("qweight",), lambda layer: (layer.sizes["scales"][1], layer.sizes["g_idx"][0]), _gptq),
    "awq": QuantizedFormat(("qweight",), lambda layer: (layer.sizes["scales"][1], layer.sizes["qweight"][0]), _awq),
    "compressed-tensors": QuantizedFormat(
        ("weight_scale",),
        lambda layer: tuple(layer["weight_shape"].tolist()) if "weight_shape" in layer.parts else _saved_shape(layer),
        _compressed_tensors,
    ),
    "fp8": QuantizedFormat(("weight_scale_inv",), _saved_shape, _fp8),
    "bitsandbytes": QuantizedFormat(
        ("weight.absmax", "SCB"),
        lambda layer: _saved_shape(layer) if "SCB" in layer.parts else tuple(_state(layer)["shape"]),
        _bitsandbytes,
    ),
    "ascend": QuantizedFormat(("weight_scale",), _saved_shape, _ascend),
}
"""By `quant_method` of config.json."""
