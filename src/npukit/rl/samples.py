"""Answers of the model, on their way from the rollout engine to the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from npukit.llm.data.collate import Collator
from npukit.llm.data.prompts import RolloutPrompt
from npukit.llm.data.rows import IGNORED

Floats = NDArray[np.float32]
# What the trainer computes for each token before the first update, by its name in a batch.
NOTED = ("old", "reference", "teacher", "learns")
TURNS = ("messages", "turns", "infos", "problem")


class Drawn(NamedTuple):
    """What the rollout engine sampled: tokens, their log-probabilities, and their text without the end token."""

    ids: list[int]
    logprobs: list[float]
    text: str
    has_ended: bool  # with a token that ends answers, or it reached the longest length
    problem: str = ""  # why there is none


@dataclass
class RolloutSample:
    """An answer: its tokens, their log-probabilities when they were sampled, and its rewards.

    One of several turns has the tokens of all of them, and `messages` after the prompt; `loss_mask` is 0 for tokens
    that the model did not sample.
    """

    prompt: RolloutPrompt
    ids: NDArray[np.int64]
    sampled: Floats
    text: str
    is_cut: bool  # it reached the longest length
    rewards: list[float] = field(default_factory=list)  # by function; NaN where there is none
    advantage: float = 0.0
    noted: dict[str, Floats] = field(default_factory=dict)
    loss_mask: Floats | None = None  # all 1
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 1
    infos: dict[str, Any] = field(default_factory=dict)  # of the scheduler
    problem: str = ""  # why the scheduler ended it, or why there is none

    def __post_init__(self) -> None:
        self.messages = self.messages or [{"role": "assistant", "content": self.text}]
        if not len(self.ids):  # one token that does not count: a batch without any would have no loss
            self.ids, self.sampled, self.loss_mask = np.zeros(1, np.int64), *np.zeros((2, 1), np.float32)
        self.mask: Floats = np.ones(len(self.ids), np.float32) if self.loss_mask is None else self.loss_mask

    def state_dict(self) -> dict[str, Any]:
        """The answer in plain containers; the prompt is known by its number."""
        arrays = {name: torch.from_numpy(array) for name, array in self.noted.items()}
        plain = {"number": self.prompt.number, "text": self.text, "is_cut": self.is_cut, "rewards": self.rewards}
        tokens = {"ids": torch.from_numpy(self.ids), "sampled": torch.from_numpy(self.sampled)}
        if self.loss_mask is not None:
            tokens |= {"loss_mask": torch.from_numpy(self.loss_mask), "prompt": torch.tensor(self.prompt.ids)}
            plain |= {name: getattr(self, name) for name in TURNS} | {"asked": self.prompt.messages}
        return {**plain, **tokens, "advantage": self.advantage, "noted": arrays}

    @classmethod
    def of(cls, state: Mapping[str, Any], prompt: RolloutPrompt) -> RolloutSample:
        """What `state_dict` returned, as a sample again."""
        noted = {name: tensor.numpy() for name, tensor in state["noted"].items()}
        plain = {name: state[name] for name in ("text", "is_cut", "rewards", "advantage")}
        if "loss_mask" in state:  # of several turns, which may have begun with another prompt
            prompt = prompt._replace(ids=tuple(state["prompt"].tolist()), messages=state["asked"])
            plain |= {name: state[name] for name in TURNS} | {"loss_mask": state["loss_mask"].numpy()}
        return cls(prompt, state["ids"].numpy(), state["sampled"].numpy(), noted=noted, **plain)


@dataclass(frozen=True)
class SampleCollator:
    """Answers with their prompts become rows of the model, and [answers, tokens] tensors of what is known of them.

    `places` are those of the token before each token of an answer, with all rows concatenated; `layout` says
    which of these each token of each answer is.
    """

    collate: Collator
    masks_cut: bool  # answers that were cut off do not count

    def __call__(self, samples: Sequence[RolloutSample]) -> dict[str, Any]:
        rows = [_row(sample) for sample in samples]
        batch = self.collate(rows)
        starts = [0, *batch["row_ends"]] if self.collate.joined else range(0, 1 << 62, batch["input_ids"].shape[1])
        before = [start + len(sample.prompt.ids) - 1 for start, sample in zip(starts, samples, strict=False)]
        lengths = [len(sample.ids) for sample in samples]
        places = [np.arange(first, first + length) for first, length in zip(before, lengths, strict=True)]
        ends = np.cumsum(lengths)
        layout = [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        counts = [float(not (sample.is_cut and self.masks_cut)) for sample in samples]
        batch |= {
            "places": torch.from_numpy(np.concatenate(places)),
            "layout": _table(layout, torch.int64),
            "mask": _table([s.mask * count for s, count in zip(samples, counts, strict=True)], torch.float32),
            "advantages": torch.tensor([sample.advantage for sample in samples], dtype=torch.float32),
            "sampled": _table([sample.sampled for sample in samples], torch.float32),
        }
        names = [name for name in NOTED if name in samples[0].noted]
        return batch | {name: _table([sample.noted[name] for sample in samples], torch.float32) for name in names}


def _row(sample: RolloutSample) -> dict[str, Any]:
    prompt = np.asarray(sample.prompt.ids, dtype=np.int64)
    labels = np.concatenate([np.full(len(prompt), IGNORED), sample.ids])
    return {"input_ids": np.concatenate([prompt, sample.ids]), "labels": labels, "images": [sample.prompt.images]}


def _table(rows: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """Rows of different lengths side by side, filled up with 0."""
    table = torch.zeros(len(rows), max(map(len, rows)), dtype=dtype)
    for number, row in enumerate(rows):
        table[number, : len(row)] = torch.from_numpy(np.asarray(row))
    return table
