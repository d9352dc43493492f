"""Torch's distributed checkpoints, as FSDP writes them: a pickled index and files with pieces of tensors.

Only the classes that an index needs are unpickled. Any other name in it is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from torch import Tensor

METADATA = ".metadata"
INSIDE = ("state_dict", "model_state_dict", "module", "model", "weights")
"""The names under which frameworks put the weights of a model, beside other things."""

_CHECKPOINT = "torch.distributed.checkpoint"
_CLASSES = {
    f"{_CHECKPOINT}.metadata": (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    f"{_CHECKPOINT}.filesystem": ("_StorageInfo",),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
}  # fmt: skip


class _Description(pickle.Unpickler):
    """Unpickles an index and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.partition(".")[0] == "pathlib":
            return _text_of
        if name not in _CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _text_of(*parts: object) -> str:
    """Paths of the machine that wrote the checkpoint are not needed."""
    return "/".join(map(str, parts))


def distributed_weights(folder: Path) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """The tensors of a distributed checkpoint by name. Each is assembled on access.

    >>> dict(distributed_weights(Path("step-100"))).keys()
    """
    description = _description(folder / METADATA)
    pieces: dict[str, list[Any]] = {}
    for index, place in description.storage_data.items():
        pieces.setdefault(index.fqn, []).append((index, place))
    planned: Mapping[str, Any] = getattr(description, "planner_data", None) or {}
    of_model = {
        name: path[1:] for name, path in planned.items() if isinstance(path, tuple) and path[0] in INSIDE and path[1:]
    }
    for name, about in description.state_dict_metadata.items():
        if hasattr(about, "chunks") and (not of_model or name in of_model):
            shown = ".".join(map(str, of_model[name])) if of_model else name
            yield shown, partial(_assemble, folder, about, pieces.get(name, []))


def _description(file: Path) -> Any:
    try:
        described = _Description(io.BytesIO(file.read_bytes())).load()
        if not (isinstance(described.storage_data, dict) and isinstance(described.state_dict_metadata, dict)):
            raise ValueError
    except pickle.UnpicklingError as error:
        raise NpukitError(
            f"{file} names {error}, which does not belong in a checkpoint's description; npukit does not run the "
            "code in a pickle."
        ) from None
    except Exception:
        raise NpukitError(f"{file} is not the description of a distributed checkpoint: it is damaged.") from None
    return described


def _assemble(folder: Path, about: Any, pieces: list[Any]) -> Tensor:
    import torch

    tensor = torch.empty(about.size, dtype=about.properties.dtype)
    covered = 0
    for index, place in pieces:
        file = folder / Path(str(place.relative_path)).name
        try:
            with file.open("rb") as opened:
                opened.seek(place.offset)
                piece = torch.load(io.BytesIO(opened.read(place.length)), map_location="cpu", weights_only=True)
            offsets = index.offset or [0] * tensor.dim()
            tensor[tuple(slice(at, at + size) for at, size in zip(offsets, piece.shape, strict=True))] = piece
            covered += piece.numel()
        except Exception:
            raise NpukitError(f"{file} does not match what {METADATA} says about {index.fqn}: it is damaged.") from None
    if covered < tensor.numel():
        raise NpukitError(
            f"{folder} lacks parts of {pieces[0][0].fqn if pieces else 'a tensor'}: copy all of its files."
        )
    return tensor
