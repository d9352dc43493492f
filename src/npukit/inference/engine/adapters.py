"""Several LoRA adapters of one base model, mixed in one batch.

The adapters of a linear layer are concatenated to one pair of matrices. Every token goes through all of them, and a
mask keeps the result of its own: at the usual ranks this costs less than sorting the tokens by adapter.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from npukit.errors import NpukitError
from npukit.inference.engine.paged import to_device
from npukit.llm.models.folder import ADAPTER, adapter_folder


@dataclass(frozen=True)
class LoadedAdapter:
    """One adapter as PEFT saves it: its matrices by the name of their layer, with the scaling factor in B."""

    name: str
    rank: int
    layers: dict[str, tuple[Tensor, Tensor]]  # A [rank, in] and B [out, rank]
    saved: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # modules_to_save: their own weights


class Adapters:
    """The adapters of a model, and which of them each token of the batch uses.

    >>> adapters = Adapters(model)
    >>> adapters.add("french", read_adapter("french", Path("lora")))
    >>> adapters.select(["french", None])   # for a batch of two tokens
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._adapters: dict[str, LoadedAdapter] = {}
        self._base: dict[str, nn.Module] = {}  # the modules that were replaced by ones with adapters
        self._rows: dict[str | None, Tensor] = {}  # of the mask, by adapter
        first = next(model.parameters())
        self._device, self.dtype = first.device, first.dtype  # layers may have weights of 8 bits
        self.mask: Tensor | None = None

    @property
    def keys(self) -> list[str]:
        """The keys of all adapters, in the order in which they were added."""
        return list(self._adapters)

    def add(self, key: str, adapter: LoadedAdapter) -> None:
        """Add an adapter under a key; one that does not fit the model is refused and changes nothing."""
        modules = dict(self._model.named_modules()) | self._base
        for name, (a, b) in adapter.layers.items():
            linear = modules.get(name)
            if linear is None or _sizes(linear) != (a.shape[1], b.shape[0]):
                raise NpukitError(
                    f"The adapter {adapter.name} does not fit this model: its layer {name} is for "
                    f"{a.shape[1]} inputs and {b.shape[0]} outputs. Use the base model that it was trained on."
                )
        for name, weights in adapter.saved.items():
            base = modules.get(name)
            sizes = {key: value.shape for key, value in base.state_dict().items()} if base is not None else {}
            if sizes != {key: value.shape for key, value in weights.items()}:
                raise NpukitError(f"The adapter {adapter.name} does not fit this model: its {name} has another size.")
            if not _sees_tokens_alone(base) or name.endswith(".kv_b_proj"):  # absorbed in parts
                raise _must_be_merged(adapter.name)
        self._adapters[key] = adapter
        self._rebuild()

    def remove(self, key: str) -> None:
        """Remove an adapter."""
        del self._adapters[key]
        self._rebuild()

    def select(self, names: Many[str | None], counts: Many[int], place: Tensor | None = None) -> Tensor | None:
        """Select the adapter of each sequence of the next batch, given their numbers of tokens; returns the mask.

        A graph reads the mask from a fixed address: `place` is the mask that it was recorded with.
        """
        if not self._adapters:
            self.mask = None
            return None
        rows = torch.stack([self._rows[name] for name in names])
        mask = rows.repeat_interleave(torch.tensor(counts), dim=0)
        mask = to_device(mask, self._device)
        self.mask = mask if place is None else place.copy_(mask)
        return self.mask

    @contextlib.contextmanager
    def at(self, places: Tensor | slice) -> Iterator[None]:
        """A context in which only these tokens of the batch are computed, as in the output layer."""
        mask = self.mask
        if mask is not None:
            self.mask = mask[places]
        try:
            yield
        finally:
            self.mask = mask

    def _rebuild(self) -> None:
        """Concatenate the matrices again; a layer without adapters becomes the original one."""
        for name, module in self._base.items():
            self._model.set_submodule(name, module)
        adapters = list(self._adapters.values())
        adapted = {name for adapter in adapters for name in adapter.layers}
        replaced = {name for adapter in adapters for name in adapter.saved}
        self._base = {name: self._model.get_submodule(name) for name in sorted(adapted | replaced)}
        kinds = torch.repeat_interleave(torch.tensor([adapter.rank for adapter in adapters], dtype=torch.int64))
        self._rows = {key: (kinds == index).float() for index, key in enumerate(self._adapters)}
        self._rows[None] = torch.zeros(len(kinds))  # kinds: which adapter a column belongs to
        columns = list(accumulate((adapter.rank for adapter in adapters), initial=0))
        for name in replaced:
            own = {
                column: adapter.saved[name]
                for column, adapter in zip(columns, adapters, strict=False)
                if name in adapter.saved
            }
            self._model.set_submodule(name, ReplacedModule(self._base[name], self, own))
        for name in adapted:
            parts = [(adapter.rank, adapter.layers.get(name)) for adapter in adapters]
            module = self._model.get_submodule(name)
            self._model.set_submodule(name, AdaptedLinear(module, self, parts, _sizes(self._base[name])))


class ReplacedModule(nn.Module):
    """A module of which some adapters have their own copy (PEFT's modules_to_save).

    `weights` are those of the copies, by the first column of the mask that their adapter has.
    """

    def __init__(self, base: nn.Module, adapters: Adapters, weights: dict[int, dict[str, Tensor]]) -> None:
        super().__init__()
        self.base, self._adapters = base, [adapters]  # in a list, so that it does not become a submodule
        self.copies = nn.ModuleDict()
        for column, state in weights.items():
            own = copy.deepcopy(base)
            own.load_state_dict(state)
            self.copies[str(column)] = own

    @property
    def weight(self) -> Any:
        """The base module's weight, for code that reads its shape or dtype."""
        return self.base.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """The output of each token's own module, or of the base module."""
        result: Tensor = self.base(inputs)
        mask = self._adapters[0].mask
        if mask is None:
            return result
        axis = 1 if result.dim() > 2 and result.shape[0] == 1 else 0  # of the tokens; heads may come behind it
        for column, module in self.copies.items():
            is_own = mask[-result.shape[axis] :, int(column)] > 0
            is_own = is_own.view(*[1] * axis, -1, *[1] * (result.dim() - axis - 1))
            result = torch.where(is_own, module(inputs), result)
        return result


class AdaptedLinear(nn.Module):
    """A linear layer with all its adapters: the rank of each, and its matrices if it has some for this layer."""

    def __init__(
        self,
        base: nn.Module,
        adapters: Adapters,
        parts: Many[tuple[int, tuple[Tensor, Tensor] | None]],
        sizes: tuple[int, int],
    ) -> None:
        super().__init__()
        self.base, self._adapters = base, [adapters]  # in a list, so that it does not become a submodule
        inputs, outputs = sizes
        a = [torch.zeros(rank, inputs) if pair is None else pair[0] for rank, pair in parts]
        b = [torch.zeros(outputs, rank) if pair is None else pair[1] for rank, pair in parts]
        self.a = torch.cat(a).to(self.weight.device, adapters.dtype)
        self.b = torch.cat(b, dim=1).to(self.weight.device, adapters.dtype)

    @property
    def weight(self) -> Any:
        """The base layer's weight, for code that reads its shape or dtype."""
        return self.base.weight

    @property
    def adapters(self) -> Adapters:
        """All adapters of the model, and which of them each token uses."""
        return self._adapters[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """The base layer plus each token's own adapter."""
        result: Tensor = self.base(hidden)
        mask = self._adapters[0].mask
        if mask is None:
            return result
        tokens = hidden.shape[:-1]  # one after another, or each in a row of its own
        mask = mask[-tokens.numel() :].view(*tokens, -1)  # the output layer may get the last tokens only
        return result + ((hidden @ self.a.T) * mask.to(hidden.dtype)) @ self.b.T


def _sees_tokens_alone(module: Any) -> bool:
    """Whether a module computes each token on its own: linear layers, embeddings and norms do, routers do not."""
    return isinstance(module, nn.Linear | nn.Embedding | Conv1D) or all(
        parameter.dim() == 1 for parameter in module.parameters()
    )


def _sizes(linear: Any) -> tuple[int, int]:
    """The numbers of inputs and outputs; the weight of GPT-2's Conv1D is transposed."""
    if isinstance(linear, nn.Linear):
        return linear.in_features, linear.out_features
    return int(linear.weight.shape[0]), int(linear.weight.shape[1])


def read_adapter(name: str, folder: Path) -> LoadedAdapter:
    """Read an adapter that PEFT saved.

    >>> read_adapter("french", Path("saves/lora")).rank
    8
    """
    from safetensors.torch import load_file

    files = adapter_folder(folder)
    try:
        config = json.loads((files / ADAPTER).read_text())
        weights = load_file(files / "adapter_model.safetensors")
        return _adapter(name, config, weights)
    except NpukitError:
        raise
    except Exception as error:  # damaged files raise all kinds of errors
        raise NpukitError(f"{folder} is not a LoRA adapter that can be read: {error}") from error


def _adapter(name: str, config: dict[str, Any], weights: dict[str, Tensor]) -> LoadedAdapter:
    _refuse_others(name, config)
    layers: dict[str, tuple[Tensor, Tensor]] = {}
    for key, a in weights.items():
        if key.endswith(".lora_A.weight"):
            layer = key.removesuffix(".lora_A.weight")
            b = weights[f"{layer}.lora_B.weight"]
            layers[layer.removeprefix("base_model.model.")] = (
                a.float(),
                b.float() * _factor(config, a.shape[0], layer),
            )
    saved = _saved(config, weights)
    is_tower = any(value.dim() > 2 for state in saved.values() for value in state.values())
    if not layers or is_tower or len(weights) != 2 * len(layers) + sum(map(len, saved.values())):
        raise _must_be_merged(name)
    return LoadedAdapter(name, max(a.shape[0] for a, _ in layers.values()), _same_rank(layers), saved)


def _saved(config: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The weights of modules that were trained completely, and of their submodules, by module.

    As in PEFT, a name stands for every module whose path ends with it: norm is input_layernorm, too.
    """
    names, saved = tuple(config.get("modules_to_save") or ()), dict[str, dict[str, Tensor]]()
    for key, value in weights.items():
        module, _, weight = key.removeprefix("base_model.model.").rpartition(".")
        if any(prefix.endswith(names) for prefix in accumulate(module.split("."), "{}.{}".format)):
            saved.setdefault(module, {})[weight] = value
    return saved


def _must_be_merged(name: str) -> NpukitError:
    what = "more than linear layers, embeddings and norms"
    return NpukitError(f"The adapter {name} changes {what}: merge it with `npukit export --merge-lora`.")


def _refuse_others(name: str, config: dict[str, Any]) -> None:
    """Refuse adapters that are more than a product of two matrices: they cannot be mixed in a batch."""
    if (kind := config.get("peft_type", config.get("swift_type"))) != "LORA":
        raise NpukitError(f"The adapter {name} is of the kind {kind}: only LoRA can be chosen by name.")
    others = [key for key in ("use_dora", "trainable_token_indices") if config.get(key)]
    if config.get("bias", "none") != "none":
        others.append("bias")
    if others:
        raise NpukitError(
            f"The adapter {name} uses {' and '.join(others)}: merge it with `npukit export --merge-lora`."
        )


def _factor(config: dict[str, Any], rank: int, layer: str) -> float:
    alphas = config.get("alpha_pattern") or {}
    alpha = next((value for key, value in alphas.items() if layer.endswith(key)), config["lora_alpha"])
    return float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)


def _same_rank(layers: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
    """Fill up smaller ranks (PEFT's rank_pattern) with zeros, so that one mask serves all layers."""
    rank = max(a.shape[0] for a, _ in layers.values())

    def filled(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        missing = rank - a.shape[0]
        return nn.functional.pad(a, (0, 0, 0, missing)), nn.functional.pad(b, (0, missing))

    return {name: filled(a, b) for name, (a, b) in layers.items()}
