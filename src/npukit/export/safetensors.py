"""Write safetensors files one tensor at a time: never more than one is in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from npukit.llm.models.checkpoint import DTYPES, HASHES
from npukit.report.hashes import hash_files

NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 8
Progress = Callable[[int, int], None]  # bytes written, bytes in all


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def write_sharded(
    folder: Path,
    plan: Mapping[str, Planned],
    tensor_of: Callable[[str], Tensor],
    shard_bytes: int,
    progress: Progress = lambda done, total: None,
) -> list[str]:
    """Write the planned tensors as transformers does, with an index where there are several files, and with hashes that
    loading checks; returns the files. `progress` gets the bytes that are written, and those in all.
    """
    total, done = sum(planned.bytes for planned in plan.values()), 0

    def wrote(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    shards = _shards(plan, shard_bytes)
    files: list[str] = []
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        one = len(shards) == 1
        files.append("model.safetensors" if one else f"model-{number:05}-of-{len(shards):05}.safetensors")
        _write_file(folder / files[-1], {name: plan[name] for name in names}, tensor_of, wrote)
        weight_map |= dict.fromkeys(names, files[-1])
    hashes = {"files": hash_files(folder, files)}
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        files.append("model.safetensors.index.json")
        (folder / files[-1]).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    (folder / HASHES).write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")
    return [*files, HASHES]


def _shards(plan: Mapping[str, Planned], shard_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, planned in plan.items():
        if shards[-1] and size + planned.bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += planned.bytes
    return shards


def _write_file(
    path: Path, plan: Mapping[str, Planned], tensor_of: Callable[[str], Tensor], wrote: Callable[[int], None]
) -> None:
    """The length of the header, the header (where each tensor is), the tensors' bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    plan = dict(sorted(plan.items(), key=lambda item: -item[1].dtype.itemsize))  # so that each one is aligned
    at = 0
    for name, planned in plan.items():
        offsets = [at, at + planned.bytes]
        header[name] = {"dtype": NAMES[planned.dtype], "shape": list(planned.shape), "data_offsets": offsets}
        at = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, planned in plan.items():
            tensor = tensor_of(name)
            assert tuple(tensor.shape) == planned.shape, name
            raw = tensor.to(planned.dtype).contiguous().flatten().view(torch.uint8)
            raw.numpy().tofile(file)
            wrote(planned.bytes)
