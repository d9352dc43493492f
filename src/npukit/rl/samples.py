"""Answers of the model, as they pass from the rollout engine to the trainer."""

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
# What the trainer computes per token before the first update, by its name in a batch.
NOTED = ("old", "reference", "teacher", "learns")
TURNS = ("messages", "turns", "infos", "problem")


class Drawn(NamedTuple):
    """What the rollout engine sampled: tokens, their log-probabilities, and their text without the end token."""

    ids: list[int]
    logprobs: list[float]
    text: str
    has_ended: bool  # with an end token, or by reaching the maximum length
    problem: str = ""  # why there is no answer


@dataclass
class RolloutSample:
    """An answer: its tokens, their log-probabilities when they were sampled, and its rewards.

    An answer of several turns contains the tokens of all of them, and `messages` after the prompt. `loss_mask` is 0 for
    tokens that the model did not sample.
    """

    prompt: RolloutPrompt
    ids: NDArray[np.int64]
    sampled: Floats
    text: str
    is_cut: bool  # it reached the maximum length
    rewards: list[float] = field(default_factory=list)  # by function; NaN if there is none
    advantage: float = 0.0
    noted: dict[str, Floats] = field(default_factory=dict)
    loss_mask: Floats | None = None  # all 1
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 1
    infos: dict[str, Any] = field(default_factory=dict)  # information from the scheduler
    problem: str = ""  # why the scheduler ended it, or why there is no answer

    def __post_init__(self) -> None:
        self.messages = self.messages or [{"role": "assistant", "content": self.text}]
        if not len(self.ids):  # one token that does not count, because a batch without tokens would have no loss
            self.ids, self.sampled, self.loss_mask = np.zeros(1, np.int64), *np.zeros((2, 1), np.float32)
        self.mask: Floats = np.ones(len(self.ids), np.float32) if self.loss_mask is None else self.loss_mask

    def state_dict(self) -> dict[str, Any]:
        """The answer in plain containers. The prompt is stored by its index."""
        arrays = {name: torch.from_numpy(array) for name, array in self.noted.items()}
        plain = {"number": self.prompt.number, "text": self.text, "is_cut": self.is_cut, "rewards": self.rewards}
        tokens = {"ids": torch.from_numpy(self.ids), "sampled": torch.from_numpy(self.sampled)}
        if self.loss_mask is not None:
            tokens |= {"loss_mask": torch.from_numpy(self.loss_mask), "prompt": torch.tensor(self.prompt.ids)}
            plain |= {name: getattr(self, name) for name in TURNS} | {"asked": self.prompt.messages}
        return {**plain, **tokens, "advantage": self.advantage, "noted": arrays}

    @classmethod
    def of(cls, state: Mapping[str, Any], prompt: RolloutPrompt) -> RolloutSample:
        """Restore a sample from the result of `state_dict`."""
        noted = {name: tensor.numpy() for name, tensor in state["noted"].items()}
        plain = {name: state[name] for name in ("text", "is_cut", "rewards", "advantage")}
        if "loss_mask" in state:  # with several turns, it may have started from another prompt
            prompt = prompt._replace(ids=tuple(state["prompt"].tolist()), messages=state["asked"])
            plain |= {name: state[name] for name in TURNS} | {"loss_mask": state["loss_mask"].numpy()}
        return cls(prompt, state["ids"].numpy(), state["sampled"].numpy(), noted=noted, **plain)


@dataclass(frozen=True)
class SampleCollator:
    """Turns answers with their prompts into rows for the model, and [answers, tokens] tensors of what is known about
    them.

    `places` are the positions of the token before each answer token, with all rows concatenated; `layout` maps these to
    the tokens of each answer.
    """

    collate: Collator
    masks_cut: bool  # truncated answers do not count

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
    """Stack rows of different lengths, padded with 0."""
    table = torch.zeros(len(rows), max(map(len, rows)), dtype=dtype)
    for number, row in enumerate(rows):
        table[number, : len(row)] = torch.from_numpy(np.asarray(row))
    return table
