"""DeepSpeed's ZeRO-3 checkpoints: each rank's file holds its part of every weight, as one flat fp32 tensor.

The files are pickles that contain objects of DeepSpeed. Only tensors and plain containers are created; anything else
that a pickle names becomes an empty object, and none of its code runs.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from torch import Tensor

_OPTIMIZER = re.compile(r"(?:.*_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_SAFE = {
    "collections": {"OrderedDict", "defaultdict"},
    "torch": {"Size", "device"},
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_device_tensor_from_numpy"},
}


class _Nothing:
    """Stands for any object, class or function that is not needed, whatever the pickle does with it."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    __setstate__ = __setitem__ = append = extend = add = __call__


def _plain_tensor(rebuild: Callable[..., Any], kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor without extra attributes, which DeepSpeed gives its flat groups."""
    return rebuild(*arguments)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
            return _plain_tensor
        if name in _SAFE.get(module, ()):
            return super().find_class(module, name)
        is_type = name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype)
        if module == "torch" and name.isidentifier() and is_type:  # a pickle may also refer to names nested in a module
            return super().find_class(module, name)
        return _Nothing


def zero3_files(folder: Path) -> list[tuple[Path, Path]]:
    """The files with each rank's weights, and the one that describes them; none if it is not a ZeRO-3 checkpoint."""
    files = sorted((int(m[1]), m[2], path) for path in folder.iterdir() if (m := _OPTIMIZER.fullmatch(path.name)))
    described = [(file, folder / f"zero_pp_rank_{rank}_mp_rank_{mp}_model_states.pt") for rank, mp, file in files]
    if not described or not described[0][1].is_file():
        return []
    if len({mp for _, mp, _ in files}) > 1:
        raise NpukitError(f"{folder} comes from a run with tensor parallelism: merge its parts with zero_to_fp32.py.")
    return described


def zero3_weights(files: Sequence[tuple[Path, Path]]) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """The weights of a checkpoint by name. Each is assembled on access."""
    import torch

    ranks = len(files)
    shapes = _load(files[0][1]).get("param_shapes")
    if not isinstance(shapes, list):
        raise NpukitError(f"{files[0][1]} does not describe the weights of a ZeRO-3 checkpoint: it is damaged.")
    flats = []
    for file, _ in files:
        states = _load(file).get("optimizer_state_dict")
        groups = states.get("fp32_flat_groups") if isinstance(states, dict) else None
        partitions = states.get("partition_count", ranks) if isinstance(states, dict) else ranks
        if not groups or not isinstance(groups, list) or not all(isinstance(group, torch.Tensor) for group in groups):
            raise NpukitError(f"{file} does not hold the weights of a ZeRO-3 checkpoint: it is damaged.")
        count = max(partitions) if isinstance(partitions, list) else partitions
        if count != ranks:
            raise NpukitError(
                f"{file.parent} was written by {count} ranks, but only the files of {ranks} are here: copy all of them."
            )
        flats.append(torch.cat([group.reshape(-1) for group in groups]))
    offset = 0
    for name, shape in (item for group in shapes for item in group.items()):
        yield name, partial(_assemble, flats, offset, torch.Size(shape))
        offset += -(-torch.Size(shape).numel() // ranks)


def _assemble(flats: Sequence[Tensor], offset: int, shape: Any) -> Tensor:
    import torch

    share = -(-shape.numel() // len(flats))
    try:
        pieces = [flat.narrow(0, offset, share) for flat in flats]
        return torch.cat(pieces)[: shape.numel()].view(shape)
    except RuntimeError:
        raise NpukitError("A ZeRO-3 checkpoint has fewer numbers than its weights need: it is damaged.") from None


def _load(file: Path) -> dict[str, Any]:
    import torch

    # Whichever path torch takes, it never uses pickle's own loader.
    reader = SimpleNamespace(Unpickler=_Unpickler, load=lambda given, **_: _Unpickler(given).load(), __name__="pickle")
    try:
        content = torch.load(file, map_location="cpu", weights_only=False, pickle_module=reader, mmap=True)
    except Exception:
        raise NpukitError(f"{file} is not a file of a DeepSpeed checkpoint: it is damaged.") from None
    return content if isinstance(content, dict) else {}
