"""Texts as vectors, with models saved by sentence-transformers (BGE, E5, GTE, Qwen3-Embedding and others).

`modules.json` in such a folder names what follows the transformer: pooling of the tokens' vectors, and normalisation.
Any other step is an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npukit.errors import NpukitError
from npukit.inference.loading import load_body, load_tokenizer
from npukit.launch.devices import torch_device
from npukit.llm.config.use import Use
from npukit.llm.models.folder import find_parts, read_json

ROWS = 32  # texts of a batch
POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "lasttoken", "max_tokens": "max"}


def is_embedding_model(model: str) -> bool:
    """Whether a folder or a name on a hub is a model that sentence-transformers saved."""
    return (find_parts(model)[0] / "modules.json").is_file()


@dataclass(frozen=True)
class Embedder:
    """A model that turns token ids into vectors.

    >>> embedder = load_embedder(Use(model={"path": "models/bge-small"}))
    >>> embedder.embed([[101, 7592, 102]]).shape
    torch.Size([1, 384])
    """

    model: Any
    tokenizer: Any
    pooling: str  # cls, mean, lasttoken or max
    normalize: bool
    longest: int  # tokens of a text

    @torch.no_grad()
    def embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """A vector for each text, [texts, size], in fp32 on the host."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # texts of similar length together
        vectors: dict[int, Tensor] = {}
        for start in range(0, len(order), ROWS):
            places = order[start : start + ROWS]
            vectors.update(zip(places, self._embed([texts[place] for place in places]), strict=True))
        return torch.stack([vectors[place] for place in range(len(texts))])

    def _embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        device = self.model.device
        rows = [torch.tensor(text) for text in texts]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id or 0)
        lengths = torch.tensor([len(text) for text in texts])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).to(device)
        hidden = self.model(input_ids=ids.to(device), attention_mask=mask.long())[0].float()
        vectors = _pooled(hidden, mask, lengths.to(device), self.pooling)
        return (torch.nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors).cpu()


def load_embedder(use: Use) -> Embedder:
    """Load an embedding model onto the device of this process."""
    folder = find_parts(use.model.path)[0]
    pooling, normalize = _steps(folder)
    device = torch_device()
    model = load_body(folder, use, device)
    limits = [getattr(model.config, "max_position_embeddings", None)]
    if (file := folder / "sentence_bert_config.json").is_file():
        limits.append(read_json(file).get("max_seq_length"))
    return Embedder(model, load_tokenizer(use), pooling, normalize, min(limit for limit in limits if limit))


def _pooled(hidden: Tensor, mask: Tensor, lengths: Tensor, pooling: str) -> Tensor:
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
    if pooling == "max":
        return hidden.masked_fill(~mask[:, :, None], -torch.inf).amax(1)
    return (hidden * mask[:, :, None]).sum(1) / lengths[:, None]


def _steps(folder: Path) -> tuple[str, bool]:
    """The pooling, and whether vectors are normalized."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = {module["type"].rsplit(".", 1)[-1]: folder / module["path"] for module in modules}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NpukitError(f"{folder / 'modules.json'} is not as sentence-transformers writes it: {error!r}.") from error
    if others := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise NpukitError(f"{folder} has steps that npukit does not compute: {', '.join(others)}.")
    config = read_json(kinds["Pooling"] / "config.json") if "Pooling" in kinds else {"pooling_mode": "mean"}
    named = config.get("pooling_mode")
    chosen = [named] if named else [name for key, name in POOLINGS.items() if config.get(f"pooling_mode_{key}")]
    if len(chosen) != 1 or chosen[0] not in POOLINGS.values():
        raise NpukitError(f"{folder} uses a pooling that npukit does not know: choose cls, mean, max or lasttoken.")
    return chosen[0], "Normalize" in kinds
