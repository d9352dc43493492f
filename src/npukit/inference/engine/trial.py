"""Tries on two short texts whether a model of an unknown family can use the paged cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from npukit.inference.engine.cache import release_cache
from npukit.inference.engine.request import Request, RequestOutput, SamplingParams

TOKENS = 64  # of the longest text that is tried
_LENGTHS = 5, 37
_FAR = ("dynamic", "longrope")  # positions that depend on the length of the text, which short ones do not show


def agrees(model: Any, answers: Callable[[list[Request]], list[RequestOutput]]) -> bool:
    """Whether the `answers` of a paged engine have the probabilities that the model itself gives.

    The model's attention is put back afterwards.

    >>> agrees(model, lambda requests: Engine(model, EngineOptions(paged=True)).generate(requests))
    True
    """
    if _depends_on_length(model.config.get_text_config().to_dict()):
        return False
    before = model.config._attn_implementation
    draw = torch.Generator().manual_seed(0)
    words = model.get_output_embeddings().weight.shape[0]
    texts = [tuple(torch.randint(words, (length,), generator=draw).tolist()) for length in _LENGTHS]
    requests = [
        Request(text, SamplingParams(temperature=0, max_tokens=6, logprobs=0), prompt_logprobs=0) for text in texts
    ]
    try:
        outputs = answers(requests)
    except Exception:  # a model's code may do anything with an attention that it was not written for
        return False
    finally:
        model.set_attn_implementation(before)
        release_cache(model)
    gaps = [gap for text, answer in zip(texts, outputs, strict=True) for gap in _gaps(model, text, answer)]
    return sum(gaps) / len(gaps) < (1e-3 if model.dtype is torch.float32 else 0.1)


def _depends_on_length(config: Mapping[str, Any]) -> bool:
    ropes = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kinds = {rope.get("rope_type") for rope in (ropes, *ropes.values()) if isinstance(rope, dict)}
    return bool(kinds & set(_FAR)) or bool(config.get("attention_chunk_size"))


@torch.no_grad()
def _gaps(model: Any, text: tuple[int, ...], answer: RequestOutput) -> list[float]:
    """How far the log-probabilities of a text and its answer are from those of one pass over both."""
    ids = torch.tensor([[*text, *answer.ids]], device=model.device)
    logprobs = model(ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
    own = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    returned = [token.logprob for token in (*answer.prompt_logprobs[1:], *answer.tokens)]
    return [abs(one - other) if other is not None else 1.0 for one, other in zip(own, returned, strict=True)]
