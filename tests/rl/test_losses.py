"""Each loss against its formula, written out in float64 one token at a time."""

from __future__ import annotations

import math
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


def by_hand(logps: Any, old: Any, ref: Any, options: GrpoOptions) -> float:
    """The loss as the papers write it."""
    high = options.epsilon if options.epsilon_high is None else options.epsilon_high
    rows = []
    for row, length in enumerate(LENGTHS):
        advantage, losses = ADVANTAGES[row], []
        whole = sum(logps[row][t] - old[row][t] for t in range(length)) / length
        for t in range(length):
            change = logps[row][t] - old[row][t] if options.importance_sampling_level == "token" else whole
            c = math.exp(change)
            if options.loss_type == "cispo":
                loss = -min(c, high) * advantage * logps[row][t]
            elif options.loss_type == "real":
                loss = 0.0
            elif options.loss_type == "sapo":
                tau = options.tau_pos if advantage > 0 else options.tau_neg
                loss = -4 / tau / (1 + math.exp(-tau * (c - 1))) * advantage
            else:
                free = c if options.delta is None else min(c, options.delta)
                loss = -min(free * advantage, min(max(c, 1 - options.epsilon), 1 + high) * advantage)
            if options.loss_type == "fipo":
                loss *= influence_by_hand(row, t, logps, old, c, whole, options)
            if ref is not None:
                apart = ref[row][t] - logps[row][t]
                loss += options.beta * (math.exp(apart) - apart - 1) * (c if options.use_bias_correction_kl else 1)
            losses.append(loss)
        rows.append(losses)
    if options.loss_type in ("grpo", "sapo"):
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    if options.loss_type == "dr_grpo":
        return sum(map(sum, rows)) / (len(rows) * options.max_completion_length)
    mean = sum(map(sum, rows)) / sum(LENGTHS)
    return mean + groups_by_hand(logps, old, options) if options.loss_type == "real" else mean


def influence_by_hand(row: int, t: int, logps: Any, old: Any, c: float, whole: float, options: GrpoOptions) -> float:
    """FIPO: the weight of a token by the changes after it."""
    total = 0.0
    for later in range(t, LENGTHS[row]):
        change = logps[row][later] - old[row][later]
        ratio = math.exp(change if options.importance_sampling_level == "token" else whole)
        total += 2 ** (-(later - t) / options.fipo_decay_rate) * change * (ratio <= (options.delta or math.inf))
    weight = min(max(math.exp(total), 1.0), 1 + options.fipo_clip_range)
    return min(max(weight, 0.8), 1.0) if ADVANTAGES[row] < 0 and c > options.fipo_safety_threshold else weight


def groups_by_hand(logps: Any, old: Any, options: GrpoOptions) -> float:
    """REAL, of groups of two answers: the second has no good answer."""
    first, second = (
        sum(logps[row][t] - old[row][t] for t in range(LENGTHS[row])) / LENGTHS[row] / options.real_tau
        for row in (0, 1)
    )
    return (math.log1p(math.exp(-first)) + math.log1p(math.exp(second))) / 2


@pytest.mark.parametrize("level", ["token", "sequence"])
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
    assert float(actual.detach()) == pytest.approx(
        by_hand(logps.tolist(), old.tolist(), ref.tolist(), options), abs=1e-12
    )
    actual.backward()
    step = 1e-6  # the gradient is that of the formula, but for those that keep a factor fixed
    for row, token in ((0, 1), (1, 4)) if loss_type not in ("cispo", "fipo") else ():
        moved = []
        for sign in (1, -1):
            changed = logps.detach().clone()
            changed[row, token] += sign * step
            moved.append(by_hand(changed.tolist(), old.tolist(), ref.tolist(), options))
        assert float(logps.grad[row, token]) == pytest.approx((moved[0] - moved[1]) / 2 / step, abs=1e-7)
    assert not logps.grad[2, 1:].any()  # nothing is learnt from what is not there
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
