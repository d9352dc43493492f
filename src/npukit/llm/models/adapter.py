"""Apply a LoRA adapter, as PEFT saves it, to the weights of its base model. Everything is computed in fp32."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.llm.models.bottleneck import KIND as BOTTLENECK
from npukit.llm.models.bottleneck import load_bottlenecks
from npukit.llm.models.checkpoint import WeightFiles, open_checkpoint
from npukit.llm.models.folder import ADAPTER, adapter_folder, read_json

PREFIX = "base_model.model."
Change = Callable[[Tensor], Tensor]
# The parts of a LoRA layer; any other tensor of an adapter replaces one of the base model.
PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector(\.weight)?|token_adapter\.trainable_tokens_delta)"
)
WRAPPED = re.compile(r"\.(base_layer|modules_to_save(\.default)?)\.")
# Initialisations of PEFT that do not change the base model.
PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal", "lora_ga", "mica")


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter in a folder."""

    folder: Path
    config: Mapping[str, Any]
    weights: WeightFiles

    def changes(self, is_transposed: Callable[[str], bool]) -> Iterator[tuple[str, Change]]:
        """The changes to parameters of the base model, in order.

        `is_transposed` says whether a module stores its weight as (in, out), like GPT-2's Conv1D and embeddings.
        """
        parts: dict[str, dict[str, str]] = {}
        for key in self.weights.entries:
            name = key.removeprefix(PREFIX)
            if match := PART.fullmatch(name):
                parts.setdefault(match["module"], {})[match["part"].removesuffix(".weight")] = key
            elif ".original_module." not in name:  # PEFT may also save the original of a trained module
                yield WRAPPED.sub(".", name), self._replaced(key)
        for module, keys in parts.items():
            if "token_adapter.trainable_tokens_delta" in keys:
                yield f"{module}.weight", self._tokens(module, keys["token_adapter.trainable_tokens_delta"])
                continue
            if "lora_B.bias" in keys:
                yield f"{module}.bias", self._bias(module, keys)
            yield f"{module}.weight", self._low_rank(module, keys, is_transposed(module))

    def _low_rank(self, module: str, keys: Mapping[str, str], transposed: bool) -> Change:
        """W + s·B·A; with DoRA, the rows are scaled to the learned lengths."""
        embedding = "embedding_" if "lora_embedding_A" in keys else ""
        down, up = keys.get(f"lora_{embedding}A"), keys.get(f"lora_{embedding}B")
        if down is None or up is None:
            raise NpukitError(f"{self.folder}: {module} has only one of its two matrices: save the adapter again.")
        scale = self._scale(module, self.weights.entries[down].shape[0])

        def change(weight: Tensor) -> Tensor:
            rows = weight.T if transposed else weight
            product = self._read(up) @ self._read(down)
            if product.shape != rows.shape:
                raise NpukitError(
                    f"{self.folder}: {module} is {tuple(product.shape)} there and {tuple(rows.shape)} in the model: "
                    "the adapter was trained on another model."
                )
            rows = rows.add(product, alpha=scale)
            if magnitude := keys.get("lora_magnitude_vector"):
                rows *= (self._read(magnitude).flatten() / rows.norm(dim=1))[:, None]
            return rows.T if transposed else rows

        return change

    def _bias(self, module: str, keys: Mapping[str, str]) -> Change:
        scale = self._scale(module, self.weights.entries[keys["lora_A"]].shape[0])
        return lambda bias: bias + scale * self._read(keys["lora_B.bias"])

    def _tokens(self, module: str, key: str) -> Change:
        """Rows of an embedding that were trained separately."""
        given = self.config["trainable_token_indices"]
        own = (
            next((rows for name, rows in given.items() if module.endswith(name)), [])
            if isinstance(given, dict)
            else given
        )
        return lambda weight: weight.index_copy(0, torch.tensor(own), self._read(key))

    def _replaced(self, key: str) -> Change:
        return lambda _: self._read(key)

    def _scale(self, module: str, rank: int) -> float:
        patterns: Mapping[str, float] = self.config.get("alpha_pattern") or {}
        alphas = (alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
        alpha = next(alphas, self.config.get("lora_alpha", 8))
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _read(self, key: str) -> Tensor:
        return self.weights.read(key).float()


def read_adapter(folder: Path) -> Adapter:
    """The adapter in a folder. Kinds that cannot be merged are refused."""
    config = read_json(adapter_folder(folder) / ADAPTER)
    if (kind := config.get("peft_type", config.get("swift_type"))) != "LORA":
        raise NpukitError(f"{folder} is an adapter of the type {kind}: only LoRA can be merged.")
    if (task := config.get("task_type")) not in (None, "CAUSAL_LM"):
        raise NpukitError(f"{folder} was trained for {task}: only adapters of causal language models can be merged.")
    start = config.get("init_lora_weights", True)
    if start not in PLAIN_STARTS:
        raise NpukitError(
            f"{folder}: an adapter that was initialised with {start} belongs to a changed base model: convert it with "
            "PEFT's save_pretrained(path_initial_model_for_weight_conversion=…) first."
        )
    for unsupported in ("target_parameters", "alora_invocation_tokens", "arrow_config", "layer_replication"):
        if config.get(unsupported):
            raise NpukitError(f"{folder}: {unsupported} cannot be merged into the weights.")
    return Adapter(folder, config, open_checkpoint(folder, "adapter_model"))


def apply_adapter(model: Any, folder: Path) -> None:
    """Merge an adapter into a loaded model, with the result that PEFT computes without merging. A bottleneck adapter
    is put into the model.

    >>> apply_adapter(model, Path("runs/lora"))
    """
    if read_json(adapter_folder(folder) / ADAPTER).get("swift_type") == BOTTLENECK:
        load_bottlenecks(model, folder)
        return
    adapter = read_adapter(folder)
    tied = tied_weights(model)
    for name, change in list(adapter.changes(lambda module: is_transposed(model, module, folder))):
        try:
            before = model.get_parameter(name)
        except AttributeError:
            raise NpukitError(
                f"{folder} changes {name}, but the model has no such weight: is this its base model?"
            ) from None
        after = nn.Parameter(change(before.detach().float()).to(before.dtype), requires_grad=False)
        _set_parameter(model, name, after)  # a weight that was tied to it stays unchanged
        if adapter.config.get("trainable_token_indices"):
            for other in (other for other, source in tied.items() if source == name):
                _set_parameter(model, other, after)


def _set_parameter(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    module, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(module), attribute, parameter)


def tied_weights(skeleton: Any) -> dict[str, str]:
    """Parameters that are saved under another parameter's name, with that name."""
    return dict(getattr(skeleton, "all_tied_weights_keys", None) or {})


def is_transposed(skeleton: nn.Module, module: str, folder: Path) -> bool:
    """Whether a module stores its weight as (in, out)."""
    try:
        target = skeleton.get_submodule(module)
    except AttributeError:
        raise NpukitError(
            f"{folder} changes {module}, but the model has no such part: is this its base model?"
        ) from None
    return isinstance(target, nn.Embedding) or type(target).__name__ == "Conv1D"
