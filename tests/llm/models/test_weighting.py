"""Losses that weigh tokens, held against their definitions; and families that bound their logits."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from npukit.llm.models.forward import return_loss, stay_near
from npukit.llm.models.loss import by_likelihood, by_uncertainty

SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
IDS = torch.arange(12).view(2, 6)
LABELS = IDS.masked_fill(IDS % 4 == 0, -100)


def models() -> list[Any]:
    torch.manual_seed(0)
    gemma = Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=0.5, query_pre_attn_scalar=8))
    return [Qwen2ForCausalLM(Qwen2Config(**SIZES)), gemma]


def definition(logits: torch.Tensor, kind: str) -> torch.Tensor:
    wanted = LABELS[:, 1:].flatten()
    flat = logits[:, :-1].flatten(0, 1)
    losses = F.cross_entropy(flat, wanted, ignore_index=-100, reduction="none")
    top = flat.topk(20).values.softmax(-1)
    weights = (-losses).exp() if kind == "dft" else (-(top * top.log()).sum(-1) / 3) ** 2
    return (losses * weights.detach())[wanted != -100].mean()


@pytest.mark.parametrize("kind", ["dft", "eaft"])
def test_a_weighted_loss_is_its_definition(kind: str) -> None:
    for model in models():
        wanted = definition(model(IDS).logits, kind)
        wanted.backward()
        gradient = model.model.embed_tokens.weight.grad.clone()
        model.zero_grad()
        return_loss(model, weighting=by_likelihood if kind == "dft" else partial(by_uncertainty, power=2.0))
        output = model(IDS, labels=LABELS)
        output.backward()
        torch.testing.assert_close(output, wanted)
        torch.testing.assert_close(model.model.embed_tokens.weight.grad, gradient)


def test_a_loss_that_stays_near_another_model_is_its_definition() -> None:
    for model, other in zip(models(), models(), strict=True):
        for value in other.parameters():
            value.data += 0.1 * torch.randn_like(value)
        logits, theirs = (network(IDS).logits[:, :-1].flatten(0, 1).log_softmax(-1) for network in (model, other))
        counts = LABELS[:, 1:].flatten() != -100
        far = F.kl_div(logits, theirs.detach(), reduction="none", log_target=True).sum(-1)[counts].mean()
        wanted = definition(model(IDS).logits, "dft") + 0.5 * far
        wanted.backward()
        gradient = model.model.embed_tokens.weight.grad.clone()
        model.zero_grad()
        return_loss(model, weighting=by_likelihood)
        stay_near(model, 0.5, other, nullcontext)
        output = model(IDS, labels=LABELS)
        output.backward()
        torch.testing.assert_close(output, wanted)
        torch.testing.assert_close(model.model.embed_tokens.weight.grad, gradient)


def test_log_probabilities_are_those_of_bounded_logits() -> None:
    _, gemma = models()
    wanted = gemma(IDS).logits[:, :-1].log_softmax(-1).gather(2, IDS[:, 1:, None]).squeeze(2)
    return_loss(gemma)
    torch.testing.assert_close(gemma(IDS, labels=IDS, per_token=True)[:, :-1], wanted)


def test_labels_count_as_often_as_their_weights_say() -> None:
    weights = IDS % 3
    for model in models():
        flat, wanted = model(IDS).logits[:, :-1].flatten(0, 1), LABELS[:, 1:].flatten()
        losses = F.cross_entropy(flat, wanted, ignore_index=-100, reduction="none")
        expected = (losses * weights[:, 1:].flatten()).sum() / (wanted != -100).sum()
        return_loss(model)
        torch.testing.assert_close(model(IDS, labels=LABELS, label_weights=weights), expected)
