"""Write a model with its adapters merged, one tensor at a time, or just in another dtype or from pickles."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npukit.errors import NpukitError
from npukit.export.folder import check_output, new_folder
from npukit.export.safetensors import Planned, Progress, write_sharded
from npukit.llm.config.record import record_files
from npukit.llm.models.adapter import Change, is_transposed, read_adapter, tied_weights
from npukit.llm.models.checkpoint import WeightFiles, open_checkpoint
from npukit.llm.models.folder import read_json
from npukit.llm.models.loading import auto_class, thinker_of

GB = 10**9
TOKENIZER = ("tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges", "chat_template", "generation_config")
OTHERS = ("config", "preprocessor_config", "LICENSE", "NOTICE", "README")
CODE = (".py", ".model", ".tiktoken")


@dataclass(frozen=True)
class Exported:
    """A folder that was written."""

    output: Path
    files: tuple[str, ...]
    tensors: int
    changed: int
    bytes: int
    dtype: str
    adapters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def merge(
    model: Path,
    adapters: Sequence[Path],
    output: Path,
    *,
    dtype: str = "auto",
    shard_bytes: int = 5 * GB,
    force: bool = False,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> Exported:
    """Write `model` with `adapters` merged one after the other, or as it is; `auto` keeps the dtype of each tensor.

    >>> merge(Path("qwen2"), [Path("lora")], Path("qwen2-merged"), dtype="bfloat16").changed
    196
    """
    check_output(output, force, (model, *adapters))
    config = read_json(model / "config.json")
    weights = open_checkpoint(model)
    if "quantization_config" in config and adapters and not weights.quantized:
        raise NpukitError(f"The weights of {model} are quantised: merge into the model that they were made from.")
    merged = MergedWeights(model, weights, adapters, trust_remote_code)
    plan = merged.plan(None if dtype == "auto" else getattr(torch, dtype))
    total = sum(planned.bytes for planned in plan.values())
    with new_folder(output, total, force, (model, *adapters)) as folder:
        files = write_sharded(folder, plan, merged.tensor, shard_bytes, progress)
        files += copy_others(model, adapters, folder)
        written = merged.config(config, plan)
        (folder / "config.json").write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    kinds = sorted({str(planned.dtype).removeprefix("torch.") for planned in plan.values()})
    names = tuple(str(adapter) for adapter in adapters)
    return Exported(output, tuple(files), len(plan), len(merged.changes), total, ", ".join(kinds), names, merged.notes)


class MergedWeights:
    """The tensors of the merged model: which there are, and each of them when it is asked for."""

    def __init__(self, model: Path, weights: WeightFiles, adapters: Sequence[Path], trust_remote_code: bool) -> None:
        self._weights = weights
        self.changes: dict[str, list[Change]] = {}
        self.notes: tuple[str, ...] = ()
        self._untied: dict[str, str] = {}
        self._dropped: set[str] = set()
        if adapters:
            self._skeleton = make_skeleton(model, trust_remote_code)
            for adapter in adapters:
                self._add(adapter)
            self._settle_ties()

    def _add(self, folder: Path) -> None:
        tied = tied_weights(self._skeleton)
        adapter = read_adapter(folder)
        for parameter, change in adapter.changes(lambda module: is_transposed(self._skeleton, module, folder)):
            name = self._saved_name(parameter, tied, folder)
            self.changes.setdefault(name, []).append(change)
            if adapter.config.get("trainable_token_indices") and name in tied.values():
                for other in (other for other, source in tied.items() if source == name):
                    self.changes.setdefault(other, []).append(change)

    def _saved_name(self, parameter: str, tied: Mapping[str, str], folder: Path) -> str:
        """The name that a parameter has in the files: some models are saved without the prefix of their body, and those
        that see with the names of their language model alone, or of that within them; of one that speaks this is the
        thinker.
        """
        bare = parameter.removeprefix(f"{self._skeleton.base_model_prefix}.")
        seeing = [
            parameter.replace("model.language_model.", prefix, 1) for prefix in ("model.", "language_model.model.")
        ]
        names = (parameter, bare, *seeing)
        for name in (*names, *(f"thinker.{name}" for name in names)):
            if name in self._weights.entries or name in tied:
                return name
        raise NpukitError(
            f"{folder} changes {parameter}, and {self._weights.folder} has no such weight: is this its base model?"
        )

    def _settle_ties(self) -> None:
        """A layer that shares its weight with the embedding is written by itself where they are no longer the same."""
        for name, source in tied_weights(self._skeleton).items():
            candidates = (source, source.partition(".")[2])
            saved = next((candidate for candidate in candidates if candidate in self._weights.entries), None)
            if saved is None or (name not in self.changes and saved not in self.changes):
                continue
            self._untied[name] = saved
            if torch.equal(self.tensor(name), self.tensor(saved)):
                del self._untied[name]
                self.changes.pop(name, None)
                self._dropped.add(name)
            else:
                self.notes += (f"{name} is no longer tied to {saved}: they were trained apart.",)

    def plan(self, dtype: torch.dtype | None) -> dict[str, Planned]:
        """What will be written, from names and shapes alone but for embeddings that have got more rows."""
        plan = {}
        for name in [*(name for name in self._weights.entries if name not in self._dropped), *self._untied]:
            entry = self._weights.entries.get(self._untied.get(name, name)) or self._weights.entries[name]
            kind = dtype if dtype and entry.dtype.is_floating_point else entry.dtype
            resized = name in self.changes and self._is_embedding(name)
            plan[name] = Planned(tuple(self.tensor(name).shape) if resized else entry.shape, kind)
        return plan

    def _is_embedding(self, name: str) -> bool:
        return any(
            name.endswith(ending) for ending in ("embed_tokens.weight", "wte.weight", "lm_head.weight", "lm_head.bias")
        )

    def tensor(self, name: str) -> Tensor:
        """A tensor of the merged model."""
        tensor = self._weights.read(self._untied.get(name, name))
        for change in self.changes.get(name, ()):
            tensor = change(tensor.float())
        return tensor

    def config(self, config: dict[str, Any], plan: Mapping[str, Planned]) -> dict[str, Any]:
        """The model's config.json, as far as it says what has changed."""
        kinds = {planned.dtype for planned in plan.values() if planned.dtype.is_floating_point}
        changed = dict(config)
        if self._weights.quantized:
            changed.pop("quantization_config", None)
        if len(kinds) == 1:
            key = "torch_dtype" if "torch_dtype" in config else "dtype"
            changed[key] = str(kinds.pop()).removeprefix("torch.")
        if self._untied:
            changed["tie_word_embeddings"] = False
        sizes = [
            planned.shape[0] for name, planned in plan.items() if name in self.changes and self._is_embedding(name)
        ]
        if sizes and "vocab_size" in config:
            changed["vocab_size"] = max(sizes)
        return changed


def make_skeleton(model: Path, trust_remote_code: bool) -> Any:
    """The model's modules without weights: to know of which kind each of them is."""
    from transformers import AutoConfig

    try:
        with torch.device("meta"):
            config = thinker_of(AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code))
            return auto_class(config).from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # what a broken configuration leads to has no common kind
        first = str(error).strip().split("\n")[0]
        raise NpukitError(f"{model / 'config.json'} cannot be used: {first}") from error


def copy_others(model: Path, adapters: Sequence[Path], folder: Path) -> list[str]:
    """All that belongs to a model beside its weights; an adapter that has its own tokenizer was trained with it."""
    copied = {
        file.name: file
        for file in model.iterdir()
        if file.is_file() and (file.name.startswith((*TOKENIZER, *OTHERS)) or file.suffix in CODE)
    }
    for adapter in adapters:
        if (adapter / "tokenizer_config.json").is_file():
            copied |= {
                file.name: file
                for file in adapter.iterdir()
                if file.is_file() and (file.name.startswith(TOKENIZER) or file.suffix == ".model")
            }
        copied |= {file.name: file for file in record_files(adapter)}  # so that the merged model knows its run, too
    for name, file in copied.items():
        shutil.copyfile(file, folder / name)
    return sorted(copied)
