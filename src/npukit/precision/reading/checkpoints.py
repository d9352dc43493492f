"""The tensors of a checkpoint: safetensors, torch files, folders of either, torch's distributed format, DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError
from npukit.precision.reading.distributed import INSIDE, METADATA, distributed_weights
from npukit.precision.reading.zero3 import zero3_files, zero3_weights

if TYPE_CHECKING:
    from torch import Tensor

_TORCH = (".pt", ".pth", ".bin", ".ckpt")

Load = Callable[[], "Tensor"]


def weights_in(path: Path) -> Iterator[tuple[str, Load]]:
    """The tensors of a checkpoint by name. Each is loaded on access, if the format allows it."""
    if not path.exists():
        raise NpukitError(f"There is no checkpoint {path}.")
    path = _weights_below(path)
    if (path / METADATA).is_file():
        yield from distributed_weights(path)
        return
    if path.is_dir() and (shards := zero3_files(path)):
        yield from zero3_weights(shards)
        return
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors")) or _torch_files(path)
    if not files:
        raise NpukitError(
            f"{path} contains no .safetensors, no .bin, .pt, .pth or .ckpt file and no {METADATA} of torch's "
            "distributed checkpoints: name a checkpoint's folder."
        )
    for file in files:
        yield from _safetensors(file) if file.suffix == ".safetensors" else _torch_file(file)


def _weights_below(path: Path) -> Path:
    """The folder that holds the weights: DeepSpeed names it in `latest`, accelerate has one for FSDP."""
    latest = path / "latest"
    if latest.is_file():
        name = latest.read_bytes()[:200].decode(errors="replace").strip()
        if name and name == Path(name).name and (path / name).is_dir():
            return path / name
    below = sorted(file.parent for file in path.glob(f"*/{METADATA}") if not file.parent.name.startswith("optim"))
    return below[0] if below and not any(path.glob("*.safetensors")) and not (path / METADATA).exists() else path


def _torch_files(folder: Path) -> list[Path]:
    """The files of a folder that hold weights; for DeepSpeed, those of the model."""
    states = sorted(folder.glob("*mp_rank_*_model_states.pt"))
    if len(states) > 1:
        raise NpukitError(
            f"{folder} contains parts of weights, as tensor parallelism writes them: merge them first with the "
            "zero_to_fp32.py beside it."
        )
    return states or sorted(path for path in folder.iterdir() if path.suffix in _TORCH)


def _safetensors(file: Path) -> Iterator[tuple[str, Load]]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, "pt")
        names = list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise NpukitError(f"{file} is not a safetensors file: {error}.") from None
    for name in names:
        yield name, partial(opened.get_tensor, name)


def _torch_file(file: Path) -> Iterator[tuple[str, Load]]:
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception:
        raise NpukitError(
            f"{file} contains more than tensors: if you trust it, convert it to safetensors; npukit does not run "
            "the code in a pickle."
        ) from None
    while isinstance(content, dict) and (
        inner := next((key for key in INSIDE if isinstance(content.get(key), dict)), "")
    ):
        content = content[inner]
    tensors = (
        {str(name): tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)}
        if isinstance(content, dict)
        else {}
    )
    if not tensors:
        raise NpukitError(f"{file} contains no mapping of names to tensors.")
    for name, tensor in tensors.items():
        yield name, tensor.clone
