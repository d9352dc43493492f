"""Losses of models that classify texts, embed them, or rank documents for a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.llm.config.options import HeadOptions
from npukit.llm.data.collate import Collator
from npukit.llm.data.encode import SEPARATOR, kept_bytes
from npukit.llm.data.rows import Chosen, inputs_and_labels

Batch = dict[str, Any]
MARGIN = 0.5  # the minimum cosine distance of dissimilar texts


class TextRows:
    """Rows of texts with their labels.

    `draw` chooses some of a row's texts. The images of a row belong to its first text, or to every text if they are
    shared.
    """

    def __init__(
        self, rows: Chosen, draw: Callable[[Any], Sequence[int]] | None = None, shares_images: bool = False
    ) -> None:
        self._rows, self._draw, self._shares_images = rows, draw, shares_images
        self.highest_token = rows.highest_token

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = self._rows.tokens(number)
        *texts, known = np.split(tokens, np.flatnonzero(tokens == SEPARATOR) + 1)
        texts = [text[:-1] for text in texts]
        labels = np.frombuffer(kept_bytes(known), np.float32)
        if self._draw:
            chosen = self._draw(labels)
            texts, labels = [texts[at] for at in chosen], labels[chosen]
        rows: list[Batch] = []
        for text in texts:
            ids, of_text = inputs_and_labels(text)
            images = self._rows.images(number) if self._shares_images or not rows else []
            rows.append({"input_ids": ids, "labels": of_text, "images": [images]})
        return {"rows": rows, "labels": labels}


def draw_documents(labels: Any, options: HeadOptions) -> list[int]:
    """Draw negatives for each positive document. The trainer seeds numpy with the step, so that a run can resume."""
    chosen: list[int] = []
    fitting, others = np.flatnonzero(labels), np.flatnonzero(labels == 0)
    for one in np.random.choice(fitting, min(len(fitting), options.positives), replace=False):
        some = np.random.choice(others, min(len(others), options.negatives), replace=False)
        chosen += [int(one), *map(int, some)]
    return chosen


@dataclass(frozen=True)
class TextCollator:
    """Collates the texts of all rows one after another, and makes targets from the labels."""

    collate: Collator
    targets: Callable[[Sequence[Any]], Tensor]

    def __call__(self, items: Sequence[dict[str, Any]]) -> Batch:
        batch = self.collate([row for item in items for row in item["rows"]])
        del batch["labels"]
        batch["texts"] = torch.tensor([len(item["rows"]) for item in items])
        batch["targets"] = self.targets([item["labels"] for item in items])
        return batch


def all_labels(labels: Sequence[Any]) -> Tensor:
    """Return the labels of all rows, one after another."""
    return torch.from_numpy(np.concatenate(labels))


def classes(labels: Sequence[Any], options: HeadOptions) -> Tensor:
    """Return the targets: one class for each row, a vector of zeros and ones, or numbers."""
    if options.problem == "number":
        return torch.from_numpy(np.stack(labels))
    if options.problem == "one":
        return torch.tensor([_class(of_row[0], options) for of_row in labels])
    several = torch.zeros(len(labels), options.labels)
    for row, of_row in enumerate(labels):
        several[row, [_class(label, options) for label in of_row]] = 1
    return several


def _class(label: float, options: HeadOptions) -> int:
    if label != int(label) or not 0 <= label < options.labels:
        raise NpukitError(f"A row has the label {label:g}: with head.labels {options.labels} they are 0 and above.")
    return int(label)


def texts_in(batch: Batch) -> int:
    """Return the number of items in the mean of a batch."""
    return len(batch["texts"])


def _of_model(model: nn.Module, batch: Batch) -> Tensor:
    outputs = model(**{name: value for name, value in batch.items() if name not in ("texts", "targets")})
    values: Tensor = (outputs if isinstance(outputs, Tensor) else outputs.logits).float()
    return values


def classified(model: nn.Module, batch: Batch, options: HeadOptions) -> Tensor:
    """Return the mean loss of a batch of texts with classes or numbers."""
    logits, targets = _of_model(model, batch), batch["targets"]
    if options.problem == "one":
        return F.cross_entropy(logits, targets)
    return F.mse_loss(logits, targets) if options.problem == "number" else _binary(logits, targets)


def _binary(scores: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, targets)


def ranked(model: nn.Module, batch: Batch, options: HeadOptions) -> Tensor:
    """Return the mean loss of a batch of documents: pointwise, or listwise for each question."""
    scores, targets = _of_model(model, batch).squeeze(1), batch["targets"]
    if options.ranking == "pointwise":
        return _binary(scores, targets)
    starts = targets.nonzero().flatten().tolist()
    groups = [scores[start:end] for start, end in zip(starts, [*starts[1:], len(scores)], strict=True)]
    losses = [-(group / options.temperature).log_softmax(0)[0] for group in groups if len(group) > 1]
    return torch.stack(losses).mean() if losses else scores.sum() * 0


def embedded(model: nn.Module, batch: Batch, options: HeadOptions, sharing: int = 1) -> Tensor:
    """Return the mean loss of a batch of embeddings. `sharing` ranks have the same rows."""
    embeddings, counts, targets = _of_model(model, batch), batch["texts"].tolist(), batch["targets"]
    if options.similarity == "infonce":
        return _contrast(embeddings, counts, options, sharing)
    if any(count != 2 for count in counts):
        raise NpukitError(f"head.similarity {options.similarity} compares pairs: leave negatives out, or use infonce.")
    alike = F.cosine_similarity(embeddings[0::2], embeddings[1::2])
    if options.similarity == "cosine_similarity":
        return F.mse_loss(alike, targets)
    far = 1 - alike
    if options.similarity == "contrastive":
        loss: Tensor = 0.5 * (targets * far**2 + (1 - targets) * F.relu(MARGIN - far) ** 2).mean()
        return loss
    same, other = far[targets == 1], far[targets == 0]
    hard_other = other[other < (same.max() if len(same) > 1 else other.mean())]
    hard_same = same[same > (other.min() if len(other) > 1 else same.mean())]
    return (hard_same**2).sum() + (F.relu(MARGIN - hard_other) ** 2).sum()


def _contrast(embeddings: Tensor, counts: list[int], options: HeadOptions, sharing: int = 1) -> Tensor:
    """Return InfoNCE, which makes a question more similar to its own text than to all others."""
    if options.in_batch:
        embeddings, counts = _everywhere(embeddings, counts, sharing)
    groups = torch.split(embeddings, counts)
    if not options.in_batch:
        alone = [group[1:] @ group[0] / options.temperature for group in groups]
        return torch.stack([-similar.log_softmax(0)[0] for similar in alone]).mean()
    documents, questions = torch.cat([group[1:] for group in groups]), torch.stack([group[0] for group in groups])
    losses, own = [], 0
    for number, group in enumerate(groups):
        similar = documents @ group[0]
        limit = similar[own].detach() + (torch.inf if options.fake_margin is None else options.fake_margin)
        parts = [_below(similar, limit)]
        if options.questions:
            parts.append(_below(_without(questions @ group[0], number), limit))
        if options.documents:
            parts.append(_without(documents @ group[1], own))
        losses.append(-(torch.cat(parts) / options.temperature).log_softmax(0)[own])
        own += len(group) - 1
    return torch.stack(losses).mean()


def _below(similar: Tensor, limit: Tensor) -> Tensor:
    """Mask negatives that are more similar than the limit, because they are probably positives."""
    return similar.masked_fill(similar > limit, -torch.inf)


def _without(similar: Tensor, number: int) -> Tensor:
    """Mask a text's similarity to itself."""
    return similar.masked_fill(torch.arange(len(similar), device=similar.device) == number, -torch.inf)


def _everywhere(embeddings: Tensor, counts: list[int], sharing: int) -> tuple[Tensor, list[int]]:
    """Return the embeddings of all ranks, of which `sharing` have the same rows.

    Only this rank's own embeddings have gradients, as in ms-swift.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return embeddings, counts
    all_counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_counts, counts)
    longest = max(map(sum, all_counts))
    padded = F.pad(embeddings.detach(), (0, 0, 0, longest - len(embeddings)))
    parts = [torch.empty_like(padded) for _ in all_counts]
    dist.all_gather(parts, padded)
    all_counts = all_counts[::sharing]
    parts = [part[: sum(own)] for part, own in zip(parts[::sharing], all_counts, strict=True)]
    parts[dist.get_rank() // sharing] = embeddings
    return torch.cat(parts), [count for own in all_counts for count in own]


def token_of(tokenizer: Any, word: str) -> int:
    """Return the token of a word."""
    token = tokenizer.convert_tokens_to_ids(word)
    if token is None or token == tokenizer.unk_token_id:
        raise NpukitError(f"head.yes, head.no: the tokenizer has no single token {word!r}.")
    return int(token)
