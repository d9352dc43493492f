"""Preference losses: for pairs of answers (DPO and its variants, reward models) and for labelled answers (KTO)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from npukit.llm.config.options import PreferenceOptions
from npukit.llm.data.collate import Collator
from npukit.llm.data.encode import SEPARATOR
from npukit.llm.data.rows import IGNORED, Chosen, inputs_and_labels
from npukit.llm.models.attention import for_attention
from npukit.llm.tasks.task import Learning, Log
from npukit.report.report import counted
from npukit.report.writing import whole_file
from npukit.train.options import TrainOptions
from npukit.train.parallel import Parallel

WITHOUT_REFERENCE = ("orpo", "simpo", "cpo")
Row = dict[str, Any]


class Pairs:
    """Rows with a chosen and a rejected answer, or with one of them. `reference` has the log-probabilities of the
    reference model.

    With `mismatched`, every row also has its question with the answer of the next row, as KTO needs it.
    """

    def __init__(self, rows: Chosen, mismatched: bool = False) -> None:
        self._rows, self._adds_mismatched = rows, mismatched
        self.reference: Any = None  # [rows, answers], computed once before the first step

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        rows = [row for row in self._halves(number) if len(row["input_ids"])]
        if self._adds_mismatched:
            rows.append(self._mismatched(rows[0], number))
        known = np.zeros(len(rows), np.float32) if self.reference is None else self.reference[number]
        return {"rows": rows, "reference": known, "is_good": bool(len(self._halves(number)[0]["input_ids"]))}

    def _halves(self, number: int) -> list[Row]:
        tokens = self._rows.tokens(number)
        at = int(np.flatnonzero(tokens == SEPARATOR)[0])
        made = [inputs_and_labels(half, self._rows.end_id) for half in (tokens[:at], tokens[at + 1 :])]
        images = [self._rows.images(number)]
        return [{"input_ids": ids, "labels": labels, "images": images} for ids, labels in made]

    def _mismatched(self, row: Row, number: int) -> Row:
        """Return the question with the next row's answer, from which KTO estimates the KL divergence."""
        other = max(self._halves((number + 1) % len(self)), key=lambda half: len(half["input_ids"]))
        begin, after = _answer_begins(row), _answer_begins(other)
        ids = np.concatenate([row["input_ids"][:begin], other["input_ids"][after:]])
        labels = np.concatenate([np.full(begin, IGNORED), other["labels"][after:]])
        return {**row, "input_ids": ids, "labels": labels}

    def highest_token(self) -> int:
        return self._rows.highest_token()


def _answer_begins(row: Row) -> int:
    return int(np.flatnonzero(row["labels"] != IGNORED)[0])


@dataclass(frozen=True)
class PairCollator:
    """Collates pairs into rows: first all chosen answers, then all rejected ones."""

    collate: Collator
    longest: int  # the maximum number of tokens in a row

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        count = len(items[0]["rows"])
        rows = [item["rows"][at] for at in range(count) for item in items]
        batch = self.collate(rows)
        if self.collate.joined:
            batch["max_length"] = self.longest  # the same for all batches, so that nothing is compiled again
        reference = np.stack([item["reference"] for item in items]).T.reshape(-1)
        batch["reference"] = torch.from_numpy(np.ascontiguousarray(reference, np.float32))
        batch["is_good"] = torch.tensor([item["is_good"] for item in items])
        return batch


def pairs_in(batch: dict[str, Any]) -> int:
    """Return the number of items in the mean of a batch."""
    return len(batch["is_good"])


def log_probabilities(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the sum of log-probabilities of each row's answer, and the number of its tokens."""
    inputs = {name: value for name, value in batch.items() if name not in ("reference", "is_good")}
    logprobs = model(**for_attention(inputs), per_token=True)
    counts = batch["labels"] != IGNORED
    if "row_ends" not in batch:
        return logprobs.sum(1), counts[:, 1:].sum(1)
    lengths = np.diff(batch["row_ends"], prepend=0).tolist()
    parts = zip(logprobs[0].split(lengths), counts[0].split(lengths), strict=True)
    sums, tokens = zip(*((some.sum(), which.sum()) for some, which in parts), strict=True)
    rows = len(batch["reference"])  # without padding
    return torch.stack(sums)[:rows], torch.stack(tokens)[:rows]


def _with_plain_loss(model: nn.Module, batch: dict[str, Any], mean: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same with the cross entropy of the chosen answers, or of all tokens of their rows."""
    if mean == "all":
        whole = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
        inputs = {name: value for name, value in batch.items() if name not in ("labels", "reference", "is_good")}
        logprobs = model(**inputs, labels=whole, per_token=True)[:, :-1]
        counts = batch["labels"][:, 1:] != IGNORED
        better, tokens = logprobs.chunk(2)[0], (whole[:, 1:] != IGNORED).chunk(2)[0]
        return (logprobs * counts).sum(1), counts.sum(1), -better.sum() / tokens.sum().clamp(min=1)
    sums, lengths = log_probabilities(model, batch)
    better, tokens = sums.chunk(2)[0], lengths.chunk(2)[0]
    if mean == "rows":
        return sums, lengths, -(better / tokens.clamp(min=1)).mean()
    return sums, lengths, -better.sum() / tokens.sum().clamp(min=1)


class MovingMean:
    """The mean over all batches so far. It starts again when a run resumes, as in TRL."""

    def __init__(self) -> None:
        self.value, self.batches = 0.0, 0

    def add(self, value: float) -> None:
        """Add a batch."""
        self.batches += 1
        self.value += (value - self.value) / self.batches


def pair_loss(
    model: nn.Module, batch: dict[str, Any], options: PreferenceOptions, moving: MovingMean | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss of a batch of pairs, and the rewards. BCO uses `moving`, the mean reward of all batches."""
    sums, lengths, plain = _with_plain_loss(model, batch, options.sft_mean)
    by_token = sums / lengths.clamp(min=1)
    uses_means = options.loss in ("ipo", "orpo", "simpo")
    chosen, rejected = (by_token if uses_means else sums).chunk(2)
    reference = batch["reference"] / (lengths.clamp(min=1) if options.loss == "ipo" else 1)
    wanted, unwanted = reference.chunk(2)
    margin = chosen - rejected - (0 if options.loss in WITHOUT_REFERENCE else wanted - unwanted)
    beta, smoothing = options.beta, options.label_smoothing
    known = 0 if options.loss in WITHOUT_REFERENCE else torch.stack([wanted, unwanted])
    figures = rewards(*(beta * (torch.stack([chosen, rejected]) - known)))
    if options.mix:
        return _mixed(chosen - wanted, rejected - unwanted, plain, options, _seen(moving, model, figures)), figures
    if options.loss == "hinge":
        losses = F.relu(1 - beta * margin)
    elif options.loss == "ipo":
        losses = (margin - 1 / (2 * beta)) ** 2
    elif options.loss == "orpo":
        odds = margin - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
        return plain - beta * F.logsigmoid(odds).mean(), figures
    else:
        scaled = beta * margin - (options.gamma if options.loss == "simpo" else 0)
        losses = -(1 - smoothing) * F.logsigmoid(scaled) - smoothing * F.logsigmoid(-scaled)
    return losses.mean() + options.sft_weight * plain if options.sft_weight else losses.mean(), figures


def _seen(moving: MovingMean | None, model: nn.Module, figures: dict[str, Tensor]) -> float:
    """Return the shift of BCO: the mean reward of all batches, including this one."""
    if moving is None:
        return 0.0
    if model.training:
        reward = (figures["rewards/chosen"] + figures["rewards/rejected"]) / 2
        moving.add(_mean_of_ranks(reward.clone()).item())
    return moving.value


def _mixed(chosen: Tensor, rejected: Tensor, plain: Tensor, options: PreferenceOptions, mean: float) -> Tensor:
    """Return the weighted sum of several losses of the same answers."""
    beta, smoothing = options.beta, options.label_smoothing
    margin = beta * (chosen - rejected)
    parts = {
        "sigmoid": -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin),
        "hinge": F.relu(1 - margin),
        "bco_pair": -F.logsigmoid(beta * chosen - mean) - F.logsigmoid(mean - beta * rejected),
        "sft": plain,
    }
    return torch.stack([weight * parts[name].mean() for name, weight in options.mix.items()]).sum()


def rewards(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Return TRL's metrics: the mean rewards of chosen and rejected answers, their margin, and the accuracy."""
    chosen, rejected = chosen.detach().float(), rejected.detach().float()
    return {
        "rewards/chosen": chosen.mean(),
        "rewards/rejected": rejected.mean(),
        "rewards/margins": (chosen - rejected).mean(),
        "rewards/accuracies": (chosen > rejected).float().mean(),
    }


def marked_loss(
    model: nn.Module, batch: dict[str, Any], options: PreferenceOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of KTO.

    It makes good answers likelier than under the reference model, and bad ones less likely.
    """
    sums, _ = log_probabilities(model, batch)
    ratios, moved = (sums - batch["reference"]).chunk(2)
    drift = _mean_of_ranks(moved.detach().mean()).clamp(min=0)
    good = batch["is_good"]
    direction = torch.where(good, 1.0, -1.0)
    weights = torch.where(good, options.desirable_weight, options.undesirable_weight)
    losses = weights * (1 - torch.sigmoid(options.beta * direction * (ratios - drift)))
    reward = options.beta * ratios.detach().float()
    figures = {
        "rewards/chosen": _mean_where(reward, good),
        "rewards/rejected": _mean_where(reward, ~good),
        "rewards/accuracies": ((reward > 0) == good).float().mean(),
        "kl": drift.float(),
    }
    return losses.mean(), figures


def _mean_where(values: Tensor, which: Tensor) -> Tensor:
    """Return the mean of the values in a mask, or zero if there are none."""
    return (values * which).sum() / which.sum().clamp(min=1)


def _mean_of_ranks(value: Tensor) -> Tensor:
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value


def reward_loss(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a reward model, which scores the chosen answer higher."""
    inputs = {name: value for name, value in batch.items() if name not in ("reference", "is_good", "labels")}
    scores = model(**inputs).logits.float().squeeze(-1)
    chosen, rejected = scores.chunk(2)
    return -F.logsigmoid(chosen - rejected).mean(), rewards(chosen, rejected)


def add_references(learning: Learning, parallel: Parallel, options: TrainOptions, log: Log) -> None:
    """Compute the reference model's log-probabilities of all training and evaluation rows, before the first step."""
    for name, data in (("train", learning.train), ("validation", learning.validation)):
        file = options.output / f"reference-{name}.npy"
        if options.resume == "never" and parallel.is_main:
            file.unlink(missing_ok=True)
        parallel.wait()
        if data is not None:
            size = options.eval_batch_size or options.batch_size
            add_reference(data, learning.collate, parallel, size, file, log)


def add_reference(data: Pairs, collate: Any, parallel: Parallel, batch_size: int, file: Path, log: Log) -> None:
    """Compute each row's log-probabilities without the adapter. A run that resumes reads them from a file."""
    if file.is_file() and len(known := np.load(file)) == len(data):
        data.reference = known
        return
    log(f"Computing the reference's log-probabilities of {counted(len(data), 'row')}.")
    module: Any = parallel.module
    without = module.disable_adapter() if hasattr(module, "disable_adapter") else nullcontext()
    logprobs: dict[int, Any] = {}
    parallel.model.eval()
    steps = -(-len(data) // (parallel.readers * batch_size))
    with torch.no_grad(), without:
        for step in range(steps):
            first = (step * parallel.readers + parallel.reader) * batch_size
            numbers = [number % len(data) for number in range(first, first + batch_size)]
            batch = parallel.move(collate([data[number] for number in numbers]))
            with parallel.autocast():
                sums, _ = log_probabilities(parallel.model, batch)
            by_row = sums.float().cpu().numpy().reshape(-1, batch_size).T
            logprobs |= dict(zip(numbers, by_row, strict=True))
    parallel.model.train()
    everywhere = {number: row for part in parallel.gather(logprobs) for number, row in part.items()}
    data.reference = np.stack([everywhere[number] for number in range(len(data))])
    if parallel.is_main:
        with whole_file(file) as place, place.open("wb") as out:
            np.save(out, data.reference)
