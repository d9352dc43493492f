"""Samples the next token of all sequences at once."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from npukit.inference.engine.draw import draw, remembered
from npukit.inference.engine.paged import to_device
from npukit.inference.engine.request import SamplingParams
from npukit.inference.engine.sequence import Sequence
from npukit.launch.abilities import abilities


@dataclass(frozen=True)
class ChosenTokens:
    """The sampled tokens and, if requested, their log-probabilities and those of the likeliest tokens."""

    tokens: Tensor
    logprobs: Tensor | None = None
    top: tuple[Tensor, Tensor] | None = None  # values and ids


def chosen_of(tokens: Tensor, logprobs: Tensor, wanted: int) -> ChosenTokens:
    """Tokens with their log-probabilities and those of the `wanted` likeliest tokens."""
    top = logprobs.topk(wanted, -1) if wanted else None
    return ChosenTokens(
        tokens, logprobs.gather(1, tokens[:, None]).squeeze(1), (top.values, top.indices) if top else None
    )


def choose(logits: Tensor, sequences: Many[Sequence], positions: Many[int]) -> ChosenTokens:
    """The next token of each sequence, [sequences], from logits [sequences, words]. `positions` says how many tokens
    each sequence has by now.
    """
    settings = [sequence.request.sampling for sequence in sequences]
    top = _most_logprobs(settings)
    tokens = draw(_changed(logits, sequences, positions), settings, positions)
    if top is None:
        return ChosenTokens(tokens)
    temperatures = _temperatures(settings, logits.device)
    if not top and abilities(logits.device).compiles:
        from npukit.inference.engine import draw_cuda  # needs Triton

        return ChosenTokens(tokens, draw_cuda.logprobs(logits, tokens, temperatures))
    return chosen_of(tokens, (logits.float() / temperatures).log_softmax(-1), top)


@remembered
def _most_logprobs(settings: Many[SamplingParams]) -> int | None:
    """How many of the likeliest tokens a sequence wants at most; None if none wants any log-probability."""
    return max((sampling.logprobs for sampling in settings if sampling.logprobs is not None), default=None)


@remembered
def _temperatures(settings: Many[SamplingParams], device: torch.device) -> Tensor | float:
    """The temperatures for the log-probabilities that are returned."""
    temperatures = [
        params.temperature if params.logprobs_after_temperature and not params.is_greedy else 1.0 for params in settings
    ]
    return 1.0 if set(temperatures) <= {1.0} else to_device(torch.tensor(temperatures)[:, None], device)


def _changed(logits: Tensor, sequences: Many[Sequence], positions: Many[int]) -> Tensor:
    """Logits with biases, penalties, min_tokens and grammars applied."""
    if not any(sequence.changes_logits for sequence in sequences):
        return logits
    logits = logits.to(torch.float32, copy=True)  # log-probabilities are those without the changes
    for row, sequence in enumerate(sequences):
        if sequence.changes_logits:
            with sequence.errors_kept():
                _change(logits[row], sequence, positions[row])
    return logits


def _change(logits: Tensor, sequence: Sequence, position: int) -> None:
    """The same for one sequence, in place."""
    sampling, prompt, words = sequence.request.sampling, len(sequence.request.prompt), len(logits)
    if sampling.logit_bias:
        ids, biases = torch.tensor(list(sampling.logit_bias)), torch.tensor(list(sampling.logit_bias.values()))
        logits[to_device(ids, logits.device)] += to_device(biases, logits.device)
    if sampling.penalises:
        logits.copy_(_penalised(logits, sequence))
    grammar, is_short = sequence.request.grammar, position - prompt < sampling.min_tokens
    if grammar is None and not is_short:
        return
    allowed = torch.ones(words, dtype=torch.bool) if grammar is None else _bits(grammar.allowed(), words)
    if is_short:
        longer = allowed.clone()
        longer[[token for token in sampling.end_tokens if token < words]] = False
        allowed = longer if longer.any() else allowed  # a grammar may allow nothing but an end token
    logits.masked_fill_(to_device(~allowed, logits.device), -torch.inf)


def _penalised(logits: Tensor, sequence: Sequence) -> Tensor:
    """A repeated token is made less likely: by a factor where it occurred at all, the prompt included; by a
    difference, once or for each time, where it was generated.
    """
    sampling = sequence.request.sampling
    if sequence.occurrences is None:
        sequence.occurrences = Occurrences(logits)
    occurrences: Occurrences = sequence.occurrences
    occurrences.update(sequence.tokens, len(sequence.request.prompt))
    factor, counts = sampling.repetition_penalty, occurrences.generated
    logits = torch.where(occurrences.seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    return logits - (sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0))


class Occurrences:
    """Which tokens a sequence contains, and how often it has generated each. They are counted on the device as they
    come, because counting a long sequence again for each token would take longer than computing the token.
    """

    def __init__(self, logits: Tensor) -> None:
        self.seen = torch.zeros_like(logits, dtype=torch.bool)
        self.generated = torch.zeros_like(logits, dtype=torch.int32)
        self._counted = 0

    def update(self, tokens: list[int], prompt: int) -> None:
        """Count the tokens that came since the last call; the first `prompt` ones were not generated."""
        new = to_device(torch.tensor(tokens[self._counted :], dtype=torch.int64), self.seen.device)
        self.seen[new] = True
        generated = new[max(0, prompt - self._counted) :]
        self.generated.index_add_(0, generated, torch.ones_like(generated, dtype=torch.int32))
        self._counted = len(tokens)


def _bits(mask: bytes, words: int) -> Tensor:
    bytes_ = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
    bits = (bytes_[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    flat = bits.flatten().bool()
    return torch.nn.functional.pad(flat, (0, max(0, words - flat.numel())))[:words]
