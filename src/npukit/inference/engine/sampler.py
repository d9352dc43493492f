"""Choose the next token of each sequence, for all of them at once.

Every choice depends on its own request alone: the randomness is a function of the request's seed, the position and
the token, so that an answer is the same whatever else is in the batch, on every device.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from npukit.inference.engine.paged import to_device
from npukit.inference.engine.request import SamplingParams
from npukit.inference.engine.sequence import Sequence


@dataclass(frozen=True)
class ChosenTokens:
    """The tokens, and where they were asked for their log-probabilities and those of the likeliest."""

    tokens: Tensor
    logprobs: Tensor | None = None
    top: tuple[Tensor, Tensor] | None = None  # values and ids


def chosen_of(tokens: Tensor, logprobs: Tensor, wanted: int) -> ChosenTokens:
    """Tokens with their log-probabilities, and those of the `wanted` likeliest."""
    top = logprobs.topk(wanted, -1) if wanted else None
    return ChosenTokens(
        tokens, logprobs.gather(1, tokens[:, None]).squeeze(1), (top.values, top.indices) if top else None
    )


def choose(logits: Tensor, sequences: Many[Sequence], positions: Many[int]) -> ChosenTokens:
    """The next token of each sequence, [sequences], from logits [sequences, words]. `positions` says how many tokens
    each sequence has by now.
    """
    logits = logits.float()
    settings = [sequence.request.sampling for sequence in sequences]
    wanted = max((each.logprobs for each in settings if each.logprobs is not None), default=None)
    raw = logits.log_softmax(-1) if wanted is not None else None
    logits = _changed(logits, sequences, positions)
    tokens = logits.argmax(-1)
    rows = [row for row, each in enumerate(settings) if not each.is_greedy]
    if len(rows) == len(settings):
        tokens = _draw(logits, settings, positions)
    elif rows:
        chosen = to_device(torch.tensor(rows), logits.device)
        tokens[chosen] = _draw(logits[chosen], [settings[row] for row in rows], [positions[row] for row in rows])
    if raw is None:
        return ChosenTokens(tokens)
    return chosen_of(tokens, raw, wanted or 0)


def _changed(logits: Tensor, sequences: Many[Sequence], positions: Many[int]) -> Tensor:
    """Biases, penalties, tokens that may not come yet and what grammars forbid."""
    for row, sequence in enumerate(sequences):
        with sequence.errors_kept():
            _change(logits[row], sequence, positions[row])
    return logits


def _change(logits: Tensor, sequence: Sequence, position: int) -> None:
    """The same for the logits of one sequence, in place."""
    sampling, prompt, words = sequence.request.sampling, len(sequence.request.prompt), len(logits)
    if sampling.logit_bias:
        ids, biases = torch.tensor(list(sampling.logit_bias)), torch.tensor(list(sampling.logit_bias.values()))
        logits[to_device(ids, logits.device)] += to_device(biases, logits.device)
    if sampling.penalises:
        logits.copy_(_penalised(logits, sequence.tokens, prompt, sampling))
    grammar, is_short = sequence.request.grammar, position - prompt < sampling.min_tokens
    if grammar is None and not is_short:
        return
    allowed = torch.ones(words, dtype=torch.bool) if grammar is None else _bits(grammar.allowed(), words)
    if is_short:
        longer = allowed.clone()
        longer[[token for token in sampling.end_tokens if token < words]] = False
        allowed = longer if longer.any() else allowed  # a grammar may let nothing but the end follow
    logits.masked_fill_(to_device(~allowed, logits.device), -torch.inf)


def _penalised(logits: Tensor, tokens: list[int], prompt: int, sampling: SamplingParams) -> Tensor:
    """A repeated token is made less likely: by a factor where it occurred at all, the prompt included; by a
    difference, once or for each time, where it was generated.
    """
    seen = to_device(torch.tensor(sorted(set(tokens))), logits.device)
    at = logits[seen]
    factor = sampling.repetition_penalty
    logits = logits.index_put((seen,), torch.where(at > 0, at / factor, at * factor))
    generated = to_device(torch.tensor(tokens[prompt:], dtype=torch.int64), logits.device)
    counts = torch.zeros_like(logits).index_add(0, generated, torch.ones_like(generated, dtype=logits.dtype))
    return logits - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)


def _bits(mask: bytes, words: int) -> Tensor:
    bytes_ = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
    bits = (bytes_[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    flat = bits.flatten().bool()
    return torch.nn.functional.pad(flat, (0, max(0, words - flat.numel())))[:words]


def _draw(logits: Tensor, settings: Many[SamplingParams], positions: Many[int]) -> Tensor:
    """Draw from the distributions, cut as asked: by top_k, then top_p, then min_p."""
    device = logits.device
    columns = [(each.temperature, each.top_p, each.min_p) for each in settings]
    temperature, top_p, min_p = to_device(torch.tensor(columns, dtype=torch.float32).T[:, :, None].contiguous(), device)
    numbers = [(each.seed, position, each.top_k) for each, position in zip(settings, positions, strict=True)]
    seeds, places, top_k = to_device(torch.tensor(numbers).T[:, :, None].contiguous(), device)
    logits = logits / temperature
    if all(not each.top_k and each.top_p >= 1 and not each.min_p for each in settings):
        ids = torch.arange(logits.shape[1], device=device)[None]
        return (logits + gumbel(seeds, places, ids)).argmax(-1)
    highest = [each.top_k for each in settings]
    kept = min(max(highest), logits.shape[1]) if all(highest) else logits.shape[1]
    values, ids = logits.topk(kept, -1) if kept < logits.shape[1] else logits.sort(-1, descending=True)
    rank = torch.arange(kept, device=device)
    values = values.masked_fill((top_k > 0) & (rank >= top_k), -torch.inf)
    probabilities = values.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    out = (before >= top_p) | (probabilities < min_p * probabilities[:, :1])
    out[:, 0] = False  # one is always left
    values = values.masked_fill(out, -torch.inf)
    best = (values + gumbel(seeds, places, ids)).argmax(-1, keepdim=True)
    return ids.gather(1, best).squeeze(1)


def gumbel(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Gumbel noise for each token: the argmax of logits plus it is a draw from their distribution.

    A hash of seed, position and token takes the place of a generator's state.
    """
    mixed = _hash(_hash(seeds & 0xFFFFFFFF) ^ _hash((seeds >> 32) & 0xFFFFFFFF) ^ (positions * 0x9E3779B9))
    hashed = _hash(mixed ^ (ids * 0x85EBCA77))
    # 23 bits: neither 0 nor 1 comes out, whose logarithms are not finite.
    uniform = ((hashed >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def _hash(numbers: Tensor) -> Tensor:
    """Mix 32 bits (the finishing steps of MurmurHash3), in int64 so that every device does it alike."""
    low = 0xFFFFFFFF
    numbers = numbers & low
    numbers = ((numbers ^ (numbers >> 16)) * 0x85EBCA6B) & low
    numbers = ((numbers ^ (numbers >> 13)) * 0xC2B2AE35) & low
    return numbers ^ (numbers >> 16)
