"""Each loss against its formula, written out in float64 one token at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.tasks.losses.grpo import _decaying_sums, loss_of, weight

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real"]
LENGTHS = (3, 5, 1, 4)
ADVANTAGES = (1.5, -0.7, 0.0, -1.2)


def values(seed: int) -> torch.Tensor:
    """Log-probabilities of four answers of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    return -torch.rand(len(LENGTHS), max(LENGTHS), generator=draw, dtype=torch.float64) * 2


def batch(**more: Any) -> dict[str, Any]:
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).double()
    return {"mask": mask, "advantages": torch.tensor(ADVANTAGES, dtype=torch.float64), "sampled": values(3), **more}


Rows = list[torch.Tensor]  # of each answer a value for each token


def by_hand(logps: Rows, old: Rows, ref: Rows | None, advantages: Sequence[float], options: GrpoOptions) -> Any:
    """The loss as the papers write it."""
    rows = []
    for row, advantage in enumerate(advantages):
        losses = []
        for t, logp in enumerate(logps[row]):
            c = ratio_by_hand(logps[row], old[row], t, options.importance_sampling_level)
            loss = token_by_hand(c, logp, advantage, options)
            if options.loss_type == "fipo":
                loss = loss * influence_by_hand(logps[row], old[row], t, advantage, options)
            if ref is not None:
                apart = ref[row][t] - logp
                loss = loss + options.beta * (apart.exp() - apart - 1) * (c if options.use_bias_correction_kl else 1)
            losses.append(loss)
        rows.append(losses)
    if options.loss_type in ("grpo", "sapo"):
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    if options.loss_type == "dr_grpo":
        return sum(map(sum, rows)) / (len(rows) * options.max_completion_length)
    mean = sum(map(sum, rows)) / sum(map(len, rows))
    return mean + groups_by_hand(logps, old, advantages, options) if options.loss_type == "real" else mean


def ratio_by_hand(logps: torch.Tensor, old: torch.Tensor, t: int, level: str) -> torch.Tensor:
    whole = (logps - old).mean()
    changes = {"token": logps[t] - old[t], "sequence": whole}
    changes["sequence_token"] = whole.detach() + logps[t] - logps[t].detach()
    return changes[level].exp()


def token_by_hand(c: torch.Tensor, logp: torch.Tensor, advantage: float, options: GrpoOptions) -> Any:
    high = options.epsilon if options.epsilon_high is None else options.epsilon_high
    if options.loss_type == "cispo":
        return -c.clamp(max=high).detach() * advantage * logp
    if options.loss_type == "real":
        return 0 * logp
    if options.loss_type == "sapo":
        tau = options.tau_pos if advantage > 0 else options.tau_neg
        return -4 / tau / (1 + (-tau * (c - 1)).exp()) * advantage
    free = c if options.delta is None else c.clamp(max=options.delta)
    return -min(free * advantage, c.clamp(1 - options.epsilon, 1 + high) * advantage)


def influence_by_hand(
    logps: torch.Tensor, old: torch.Tensor, t: int, advantage: float, options: GrpoOptions
) -> torch.Tensor:
    """FIPO: the weight of a token by the changes after it."""
    total = torch.zeros((), dtype=torch.float64)
    for later in range(t, len(logps)):
        ratio = ratio_by_hand(logps, old, later, options.importance_sampling_level)
        change = (logps[later] - old[later]).detach() * (ratio <= (options.delta or math.inf))
        total += 2 ** (-(later - t) / options.fipo_decay_rate) * change
    weight = total.exp().clamp(1.0, 1 + options.fipo_clip_range)
    c = ratio_by_hand(logps, old, t, options.importance_sampling_level)
    return weight.clamp(0.8, 1.0) if advantage < 0 and c > options.fipo_safety_threshold else weight


def groups_by_hand(logps: Rows, old: Rows, advantages: Sequence[float], options: GrpoOptions) -> Any:
    """REAL: a group without good answers, or without bad ones, counts nothing."""
    size = options.num_generations
    groups = [range(first, first + size) for first in range(0, len(logps), size)]
    total: Any = 0.0
    for group in groups:
        scores = [((logps[row] - old[row]).mean() / options.real_tau, advantages[row] > 0) for row in group]
        good, bad = ([score for score, is_good in scores if is_good is wanted] for wanted in (True, False))
        if good and bad:
            total += (1 + sum((-score).exp() for score in good)).log() + (1 + sum(score.exp() for score in bad)).log()
    return total / len(groups)


def rows_of(table: torch.Tensor) -> Rows:
    return [row[:length] for row, length in zip(table, LENGTHS, strict=True)]


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_loss_is_its_formula(loss_type: Any, level: Any) -> None:
    more: dict[str, Any] = {"epsilon_high": 0.3, "delta": 1.6} if loss_type != "cispo" else {"epsilon_high": 1.2}
    biased = loss_type == "dapo"
    more |= {"beta": 0.1, "use_bias_correction_kl": biased, "importance_sampling_level": level}
    if loss_type == "fipo":
        more |= {"fipo_decay_rate": 2.0, "fipo_clip_range": 0.9, "fipo_safety_threshold": 1.1, "delta": 3.0}
    if loss_type == "real":
        more["num_generations"] = 2
    options = GrpoOptions(loss_type=loss_type, **more)
    logps, old, ref = values(0).requires_grad_(), values(1), values(2)
    actual, figures = loss_of(logps, torch.ones_like(logps), batch(old=old, reference=ref), options)
    (gradient,) = torch.autograd.grad(actual, logps)
    expected = by_hand(rows_of(logps), rows_of(old), rows_of(ref), ADVANTAGES, options)
    (expected_gradient,) = torch.autograd.grad(expected, logps)
    assert float(actual.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    assert torch.allclose(gradient, expected_gradient, rtol=0, atol=1e-12)
    assert gradient.any() and not gradient[2, 1:].any()  # nothing is learnt from what is not there
    assert float(figures["kl"]) > 0


def test_tokens_count_by_how_the_learner_and_the_sampler_differ() -> None:
    old, sampled = torch.tensor([[0.0, 0.0]]), torch.tensor([[-math.log(4), math.log(2)]])  # ratios 4 and 1/2
    more = {"mask": torch.ones(1, 2), "advantages": torch.ones(1), "sampled": sampled, "old": old}
    expected = {"token_truncate": 2.5, "token_mask": 0.5, "sequence_truncate": 2 * math.sqrt(2), "sequence_mask": 4.5}
    for mode, weights in expected.items():
        options = GrpoOptions(importance_correction=mode, loss_type="bnpo")
        loss, figures = loss_of(torch.zeros(1, 2), torch.zeros(1, 2), more, options)
        assert float(loss) == pytest.approx(-weights / 2), mode
    assert float(figures["sampling/logp_difference"]) == pytest.approx((math.log(4) + math.log(2)) / 2)


def test_changes_far_behind_a_token_count_less() -> None:
    change = torch.randn(2, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = [sum(0.9**k * row[t + k] for k in range(300 - t)) for row in change.tolist() for t in range(300)]
    assert _decaying_sums(change, 0.9).flatten().tolist() == pytest.approx(expected, abs=1e-9)  # over several blocks


def test_the_shares_of_clipped_tokens() -> None:
    logps = torch.tensor([[0.5, -0.5], [0.5, -0.5]])
    answers = {"mask": torch.ones(2, 2), "advantages": torch.tensor([1.0, -1.0]), "sampled": torch.zeros(2, 2)}
    _, figures = loss_of(logps, logps, {**answers, "old": torch.zeros(2, 2)}, GrpoOptions())
    assert (float(figures["clip_ratio/high"]), float(figures["clip_ratio/low"])) == (0.25, 0.25)


def test_answers_that_moved_too_far_are_left_out() -> None:
    far = batch(old=values(0))
    far["sampled"] = values(0) + 1.0
    options = GrpoOptions(off_policy_mask=0.5, loss_type="grpo")
    logps = values(0).requires_grad_()
    loss_of(logps, logps, far, options)[0].backward()
    assert [bool(row.any()) for row in logps.grad] == [True, False, False, False]  # bad ones alone; 0.0 has no gradient


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_batch_of_nothing_but_masked_answers_is_zero(loss_type: Any) -> None:
    more: dict[str, Any] = {"importance_correction": "sequence_mask", "off_policy_mask": 1.0, "num_generations": 2}
    options = GrpoOptions(loss_type=loss_type, **more)
    nothing = batch(mask=torch.zeros(len(LENGTHS), max(LENGTHS)))
    logps = values(0).requires_grad_()
    loss, figures = loss_of(logps, logps, nothing, options)
    loss.backward()
    assert float(loss.detach()) == 0 and not logps.grad.any() and all(map(math.isfinite, map(float, figures.values())))
    assert weight(nothing, options) == (0 if loss_type in ("dapo", "cispo", "fipo") else len(LENGTHS))
