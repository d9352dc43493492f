"""Reward models: models with a score in place of the output layer, as `task: rm` trains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from npukit.errors import NpukitError
from npukit.llm.config.options import ModelOptions
from npukit.llm.data.prepare import pad_id
from npukit.llm.hub import Hub
from npukit.llm.models.adapter import apply_adapter
from npukit.llm.models.folder import find_parts
from npukit.llm.models.loading import load_config, load_model, load_tokenizer, locate
from npukit.rl.rewards.answers import AnswerBatch

ROWS = 16  # answers that are scored together


class ScoringModel:
    """Scores conversations, on the device of the model that is trained."""

    def __init__(self, path: str, hub: Hub, device: torch.device, dtype: torch.dtype) -> None:
        base, adapters = find_parts(path, ()) if Path(path).exists() else (Path(path), ())
        options = ModelOptions(path=str(base), hub=hub)
        place = locate(options)
        self.name = Path(path).name
        self._tokenizer = load_tokenizer(options, place)
        kinds = load_config(options, place).architectures or ()
        if not adapters and not any("SequenceClassification" in kind for kind in kinds):  # it would have a random score
            raise NpukitError(
                f"rewards.models: {path} has no score: train it with task rm, or name a model that was trained to "
                "score answers."
            )
        model: Any = load_model(options, place, dtype, None, 1)
        for adapter in adapters:
            apply_adapter(model, adapter)
        if self._tokenizer.chat_template is None:
            raise NpukitError(f"rewards.models: the tokenizer of {path} has no chat template.")
        model.config.pad_token_id = self._tokenizer.pad_token_id = pad_id(self._tokenizer)
        self._tokenizer.padding_side = "right"
        self._model = model.to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def score(self, answers: AnswerBatch) -> list[float]:
        """The score of each answer after its prompt."""
        texts = [
            self._tokenizer.apply_chat_template(conversation, tokenize=False) for conversation in answers.conversations
        ]
        scores: list[float] = []
        for first in range(0, len(texts), ROWS):
            some = self._tokenizer(
                texts[first : first + ROWS], return_tensors="pt", padding=True, add_special_tokens=False
            )
            logits = self._model(**some.to(self._model.device)).logits.float()
            scores += logits[:, 0].tolist()
        return scores
