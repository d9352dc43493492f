"""Draws follow the distribution that was asked for, and depend on their own request alone."""

from __future__ import annotations

import pytest
import torch
from tests.inference.engine.conftest import MakeModel, prompts

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.draw import remembered
from npukit.inference.engine.sampler import _penalised, choose
from npukit.inference.engine.sequence import Sequence

LOGITS = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0])


def drawn(count: int = 400, tokens: tuple[int, ...] = (0,), **settings: object) -> list[float]:
    """How often each token comes, from as many seeds."""
    sequences = [
        Sequence(seed, Request((0,), SamplingParams(seed=seed, **settings)), list(tokens), 100) for seed in range(count)
    ]
    tokens_ = choose(LOGITS.repeat(count, 1), sequences, [len(tokens)] * count).tokens
    return (torch.bincount(tokens_, minlength=5) / count).tolist()


def test_draws_follow_the_distribution() -> None:
    assert drawn(4000) == pytest.approx(LOGITS.softmax(0).tolist(), abs=0.03)
    assert drawn(4000, temperature=2.0) == pytest.approx((LOGITS / 2).softmax(0).tolist(), abs=0.03)


@pytest.mark.parametrize(
    "settings, left",
    [
        ({"top_k": 2}, 2),
        ({"top_p": 0.7}, 2),
        ({"min_p": 0.3}, 2),
        ({"top_k": 4, "top_p": 0.5}, 1),
        ({"top_p": 1e-9}, 1),
    ],
)
def test_what_is_cut_off_never_comes(settings: dict[str, float], left: int) -> None:
    shares = drawn(**settings)
    assert all(shares[:left]) and not any(shares[left:])


def test_penalties_and_biases() -> None:
    greedy = {"temperature": 0.0}
    assert drawn(1, **greedy)[0] == 1
    assert drawn(1, logit_bias={3: 100.0}, **greedy)[3] == 1
    assert drawn(1, tokens=(0, 0), presence_penalty=2.0, **greedy)[1] == 1
    assert drawn(1, tokens=(0, 0, 0), frequency_penalty=0.6, **greedy)[1] == 1
    assert drawn(1, repetition_penalty=4.0, **greedy)[1] == 1  # the prompt counts, too


def test_a_seed_gives_the_same_answer_in_every_company(make_model: MakeModel) -> None:
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=8))
    asked = prompts(5)
    wanted = Request(asked[0], SamplingParams(temperature=0.9, top_p=0.9, max_tokens=10, seed=7))
    others = [
        Request(prompt, SamplingParams(seed=seed, top_k=seed, repetition_penalty=1 + seed / 10, max_tokens=9))
        for seed, prompt in enumerate(asked)
    ]
    alone = engine.generate([wanted])[0].ids
    assert engine.generate([*others, wanted])[-1].ids == alone
    other_seed = Request(asked[0], SamplingParams(temperature=0.9, top_p=0.9, max_tokens=10, seed=8))
    assert engine.generate([other_seed])[0].ids != alone


def test_log_probabilities_are_those_before_biases(make_model: MakeModel) -> None:
    """Also where logits are changed in place."""
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=2))
    params = {"temperature": 0.0, "max_tokens": 1, "logprobs": 0}
    plain = engine.generate([Request((5, 6), SamplingParams(**params))])[0].tokens[0]
    biased = engine.generate([Request((5, 6), SamplingParams(**params, logit_bias={plain.id: 9.0}))])[0].tokens[0]
    assert biased == plain


def test_what_was_computed_for_the_same_settings_is_remembered() -> None:
    calls: list[list[int]] = []

    @remembered
    def double(numbers: list[int], factor: int = 2) -> list[int]:
        calls.append(numbers)
        return [factor * number for number in numbers]

    assert [double([1, 2]), double([1, 2]), double([2, 1]), double([1, 2]), double([1, 2], 3)] == [
        [2, 4],
        [2, 4],
        [4, 2],
        [2, 4],
        [3, 6],
    ]
    assert calls == [[1, 2], [2, 1], [1, 2], [1, 2]]


def test_penalties_are_counted_on_as_an_answer_grows() -> None:
    settings = SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25)
    growing = Sequence(0, Request((0, 1), settings), [0, 1], 100)
    for token in (2, 2, 0, 3, 4):
        anew = Sequence(0, growing.request, list(growing.tokens), 100)
        logits = [_penalised(LOGITS, sequence) for sequence in (growing, anew)]
        assert torch.equal(*logits)
        growing.tokens.append(token)
    factor = torch.tensor([1 / 1.5, 1 / 1.5, 1 / 1.5, 1, 1.5])
    expected = LOGITS * factor - torch.tensor([0.75, 0, 1.0, 0.75, 0.75])
    assert torch.allclose(_penalised(LOGITS, growing), expected)
