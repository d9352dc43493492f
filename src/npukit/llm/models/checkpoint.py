"""Read the tensors of a saved model or adapter one at a time, from safetensors or from pickles without running code.

Quantised layers are read as the weights that they represent.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npukit.errors import NpukitError
from npukit.llm.models.dequantize import QuantizedLayer, quantized_layers
from npukit.llm.models.weights import broken_weights
from npukit.report.hashes import find_damaged

HASHES = "hashes.json"  # written by `npukit export` next to the weights: {"files": {name: SHA-256}}
_LISTS = (HASHES, "checkpoint.json")  # the second one is a training checkpoint's
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorEntry:
    """The location, shape and dtype of a tensor."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class WeightFiles:
    """The tensors of a folder by name. Only names and shapes are read until `read` is called.

    >>> weights = open_checkpoint(Path("models/qwen2"))
    >>> weights.entries["model.norm.weight"].shape, weights.read("model.norm.weight").dtype
    ((3584,), torch.bfloat16)
    """

    folder: Path
    entries: Mapping[str, TensorEntry]
    is_pickled: bool
    _unpickled: dict[str, Tensor] = field(default_factory=dict, repr=False)
    quantized: Mapping[str, QuantizedLayer] = field(default_factory=dict, repr=False)  # by the name of their weight
    saved_bytes: int = 0  # the shapes in the files, if layers are quantised

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries.values())

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU. The file is opened only for it, so that its pages do not stay in memory."""
        if name in self.quantized:
            return self.quantized[name].weight().to(self.entries[name].dtype)
        if self.is_pickled:
            return self._unpickled[name]
        from safetensors import safe_open

        with safe_open(self.entries[name].file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def dequantized(self) -> WeightFiles:
        """The same with quantised layers as the weights that they represent."""
        layers = quantized_layers(self.folder, {name: entry.shape for name, entry in self.entries.items()}, self.read)
        if not layers:
            return self
        parts = {name for layer in layers.values() for name in layer.parts.values()}
        entries = {name: entry for name, entry in self.entries.items() if name not in parts}
        others = {entry.dtype for entry in entries.values()}
        dtype = next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in others), torch.float32)
        for name, layer in layers.items():
            entries[f"{name}.weight"] = TensorEntry(self.folder, layer.shape, dtype)
        quantized = {f"{name}.weight": layer for name, layer in layers.items()}
        return replace(self, entries=entries, quantized=quantized, saved_bytes=self.bytes)


def open_checkpoint(folder: Path, stem: str = "model", pickles: bool = True) -> WeightFiles:
    """The weights in a model's folder, or an adapter's with the stem `adapter_model`. Safetensors are preferred.

    Pickles are read with torch's `weights_only`, which creates tensors and runs no code.
    """
    if files := _files(folder, stem, ".safetensors"):
        if broken := [text for text in broken_weights(folder) if any(str(file) in text for file in files)]:
            raise NpukitError(broken[0])
        _check_hashes(folder, files)
        return WeightFiles(folder, _entries(files), is_pickled=False).dequantized()
    files = _files(folder, "pytorch_model" if stem == "model" else stem, ".bin")
    if not files:
        raise NpukitError(f"{folder} has no weights: there is no {stem}.safetensors and no index of its parts.")
    if not pickles:
        raise NpukitError(
            f"{folder} stores its weights in pickles ({files[0].name}): convert them once with `npukit export {folder} "
            "--output FOLDER`, or allow them with --allow-pickles."
        )
    tensors = {name: tensor for file in files for name, tensor in _unpickle(file).items()}
    entries = {name: TensorEntry(folder, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    return WeightFiles(folder, entries, is_pickled=True, _unpickled=tensors).dequantized()


def _files(folder: Path, stem: str, suffix: str) -> list[Path]:
    """One file, or the parts listed in an index. Mistral's consolidated.safetensors, for example, is a second copy."""
    index = folder / f"{stem}{suffix}.index.json"
    if not index.is_file():
        return [file for file in [folder / f"{stem}{suffix}"] if file.is_file()]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        elsewhere = [name for name in names if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NpukitError(f"{index} cannot be read: download it again.") from None
    if elsewhere:
        raise NpukitError(f"{index} names {elsewhere[0]}, which is not a file beside it: download the model again.")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise NpukitError(f"{folder} lacks {missing[0]}, which its index lists: download it.")
    return [folder / name for name in names]


def _check_hashes(folder: Path, files: list[Path]) -> None:
    """Refuse weights that changed since npukit wrote them. Other tools write no hashes."""
    for listed in (folder / name for name in _LISTS if (folder / name).is_file()):
        try:
            written = dict(json.loads(listed.read_text(encoding="utf-8"))["files"])
        except (ValueError, KeyError, TypeError):
            raise NpukitError(f"{listed} cannot be read: copy it again, or delete it.") from None
        if damaged := find_damaged(folder, {file.name: written[file.name] for file in files if file.name in written}):
            raise NpukitError(
                f"{folder / damaged} was changed after it was written: copy or export it again. If you changed it "
                f"yourself, delete {listed}."
            )


def _entries(files: list[Path]) -> dict[str, TensorEntry]:
    from safetensors import SafetensorError, safe_open

    entries = {}
    for file in files:
        try:
            opening = safe_open(file, framework="pt")
        except SafetensorError as error:
            raise NpukitError(f"{file} is not a complete safetensors file ({error}): download it again.") from None
        with opening as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                part = opened.get_slice(name)
                kind = part.get_dtype()
                if kind not in DTYPES:
                    raise NpukitError(f"{file}: {name} has the type {kind}, which is not supported.")
                entries[name] = TensorEntry(file, tuple(part.get_shape()), DTYPES[kind])
    return entries


def _unpickle(file: Path) -> dict[str, Tensor]:
    load = functools.partial(torch.load, file, map_location="cpu", weights_only=True)
    try:
        try:
            tensors: Any = load(mmap=True)
        except RuntimeError:  # files older than torch 1.6 cannot be memory-mapped
            tensors = load()
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise NpukitError(f"{file} cannot be read without running the code in it: {first}") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise NpukitError(f"{file} contains something other than named tensors: are these a model's weights?")
    return tensors
