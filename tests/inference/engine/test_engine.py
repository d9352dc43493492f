"""Answers are those of one request alone, whatever the engine does to answer many at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.inference.engine.conftest import MakeModel, generated, prompts

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions, Output, Request, SamplingParams, Token
from npukit.inference.engine.results import PendingStep

GREEDY = SamplingParams(temperature=0, max_tokens=12)
WAYS = {
    "at once": EngineOptions(max_num_seqs=8),
    "ahead": EngineOptions(max_num_seqs=8, async_scheduling=True),
    "few rows": EngineOptions(max_num_seqs=2, async_scheduling=True),
    "few blocks, in chunks": EngineOptions(
        max_num_seqs=8, num_blocks=10, max_num_batched_tokens=16, async_scheduling=True
    ),
    "no reuse": EngineOptions(max_num_seqs=8, enable_prefix_caching=False),
    "prompts beside decoding": EngineOptions(max_num_seqs=8, max_num_mixed_tokens=1024),
    "prompt lookup": EngineOptions(max_num_seqs=8, prompt_lookup=6),
    "prompt lookup, few blocks, beside": EngineOptions(
        max_num_seqs=3, num_blocks=10, max_num_mixed_tokens=256, prompt_lookup=4
    ),
    "beside, few rows and blocks, ahead": EngineOptions(
        max_num_seqs=3, num_blocks=10, max_num_mixed_tokens=256, async_scheduling=True
    ),
}
MANY_FAMILIES = ("at once", "beside, few rows and blocks, ahead")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma2"])
def test_batched_answers_equal_generate(kind: str, make_model: MakeModel) -> None:
    asked, model = prompts(6), make_model(kind)
    expected = [generated(model, prompt, 12) for prompt in asked]
    for name in WAYS if kind in ("qwen2", "mistral") else MANY_FAMILIES:  # with a window and without one
        options = WAYS[name]
        engine = Engine(make_model(kind), options)
        answers = engine.generate([Request(prompt, GREEDY) for prompt in asked])
        assert [answer.ids for answer in answers] == expected, name
        assert {answer.finish_reason for answer in answers} == {"length"}
        assert engine.is_paged == (kind != "gemma2")
        assert engine.stats().blocks_used == 0


def test_a_step_is_launched_before_the_one_before_is_waited_for(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(make_model("qwen2"), EngineOptions(max_num_seqs=2, async_scheduling=True))
    newer = []
    wait = PendingStep.tokens

    def tokens(launched: PendingStep) -> Iterator[list[Token]]:
        newer.append(engine._pending is not launched)
        return wait(launched)

    monkeypatch.setattr(PendingStep, "tokens", tokens)
    engine.generate([Request((1, 2, 3), GREEDY)])
    assert newer == [True] * 12
    newer.clear()
    engine.generate([Request((1, 2, 3), SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.1))])
    assert newer == [False] * 12  # its next token depends on the last one


def test_the_youngest_gives_way_where_blocks_run_out(make_model: MakeModel) -> None:
    asked = [prompt * 15 for prompt in ((5,), (6,), (7,), (8,))]  # a block each, and each grows to four
    engine = Engine(make_model("qwen2"), EngineOptions(max_num_seqs=4, num_blocks=7, async_scheduling=True))
    settings = SamplingParams(temperature=0, max_tokens=40)
    answers = engine.generate([Request(prompt, settings) for prompt in asked])
    assert engine.stats().preemptions > 0
    assert [answer.ids for answer in answers] == [generated(make_model("qwen2"), prompt, 40) for prompt in asked]


@pytest.mark.parametrize("lookup", [1, 6])
def test_guessed_tokens_change_no_answer_greedy_or_drawn(lookup: int, make_model: MakeModel) -> None:
    few: dict[str, Any] = {
        "logit_bias": dict.fromkeys(range(3), 100.0),
        "max_tokens": 60,
    }  # so that the same ones follow each other
    asked = prompts(4)
    settings = [
        SamplingParams(temperature=0, **few),
        SamplingParams(temperature=0.7, seed=5, logprobs=2, **few),
        SamplingParams(temperature=0, repetition_penalty=1.1, **few),  # is never guessed
        SamplingParams(temperature=0.7, min_tokens=20, end_tokens=frozenset([2]), **few),
    ]
    requests = [Request(prompt, params) for prompt, params in zip(asked, settings, strict=True)]
    plain, guessing = (
        Engine(make_model("qwen2"), EngineOptions(max_num_seqs=4, prompt_lookup=tokens)) for tokens in (0, lookup)
    )
    expected, answers = plain.generate(requests), guessing.generate(requests)
    assert [answer.ids for answer in answers] == [answer.ids for answer in expected]
    assert [answer.finish_reason for answer in answers] == [answer.finish_reason for answer in expected]
    logprobs = [[token.logprob for token in answer[1].tokens] for answer in (answers, expected)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    stats = guessing.stats()
    assert 0 < stats.accepted_tokens < stats.draft_tokens and not plain.stats().draft_tokens
    assert stats.blocks_used == 0


@pytest.mark.parametrize("blocks", [None, 12])  # few: guesses get what nobody needs
def test_a_draft_model_changes_no_answer(blocks: int | None, make_model: MakeModel) -> None:
    settings = [
        SamplingParams(temperature=0, max_tokens=40),
        SamplingParams(temperature=0.3, seed=5, max_tokens=40),
        SamplingParams(temperature=0, repetition_penalty=1.1, max_tokens=40),  # is never guessed
        SamplingParams(temperature=0, max_tokens=1),
    ]
    requests = [Request(prompt, one) for prompt, one in zip(prompts(4), settings, strict=True)]
    draft = make_model("qwen2")
    with torch.no_grad():  # right in most cases
        draft.lm_head.weight += 0.1 * torch.randn(draft.lm_head.weight.shape, generator=torch.manual_seed(2))
    options = EngineOptions(max_num_seqs=4, num_blocks=blocks, num_speculative_tokens=5)
    engine = Engine(make_model("qwen2"), options, draft=Engine(draft, EngineOptions(max_num_seqs=4)))
    expected = Engine(make_model("qwen2"), EngineOptions(max_num_seqs=4)).generate(requests)
    assert [answer.ids for answer in engine.generate(requests)] == [answer.ids for answer in expected]
    stats = engine.stats()
    assert 0 < stats.accepted_tokens < stats.draft_tokens and stats.blocks_used == 0


def test_a_prefix_is_reused(make_model: MakeModel) -> None:
    engine = Engine(make_model("qwen2"), EngineOptions(max_num_seqs=4))
    prompt = prompts(1, 60)[0] * 3
    first, second = (engine.generate([Request(prompt, GREEDY)])[0].ids for _ in range(2))
    assert first == second
    assert engine.stats().cached_tokens == (len(prompt) - 1) // 16 * 16
    longer = prompt + tuple(first)
    assert engine.generate([Request(longer, GREEDY)])[0].ids == generated(make_model("qwen2"), longer, 12)


def test_an_end_token_ends(make_model: MakeModel) -> None:
    engine = Engine(make_model("qwen2"), EngineOptions(max_num_seqs=4))
    prompt = prompts(1)[0]
    ids = engine.generate([Request(prompt, GREEDY)])[0].ids
    end = SamplingParams(temperature=0, max_tokens=12, end_tokens=frozenset([ids[3]]))
    answer = engine.generate([Request(prompt, end)])[0]
    assert answer.ids == ids[: ids.index(ids[3]) + 1]
    assert answer.finish_reason == "stop"
    late = SamplingParams(temperature=0, max_tokens=12, end_tokens=frozenset([ids[3]]), min_tokens=6)
    assert len(engine.generate([Request(prompt, late)])[0].ids) > 6


def test_a_cancelled_request_frees_its_place(make_model: MakeModel) -> None:
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=1))
    first, second = engine.add_request(Request((5,) * 40)), engine.add_request(Request((6, 7), GREEDY))
    engine.step()
    engine.abort_request(first)
    outputs: list[Output] = []
    while not engine.is_idle:
        outputs += engine.step()
    assert [output.finish_reason for output in outputs if output.request_id == first and output.finish_reason] == [
        "cancelled"
    ]
    assert sum(output.request_id == second and output.token is not None for output in outputs) == 12
    engine.abort_request(first)  # once more changes nothing
    assert engine.is_idle


@pytest.mark.parametrize(
    "request_", [Request(()), Request((1,) * 256), Request((300,)), Request((-1,)), Request((1,), adapter="none")]
)
def test_what_cannot_be_answered_is_refused(request_: Request, make_model: MakeModel) -> None:
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=1))
    with pytest.raises(NpukitError):
        engine.add_request(request_)
    assert engine.is_idle


def test_logprobs_are_the_models(make_model: MakeModel) -> None:
    import torch

    model = make_model("qwen2")
    prompt = prompts(1)[0] * 2
    settings = SamplingParams(temperature=0, max_tokens=4, logprobs=2)
    answer = Engine(make_model("qwen2"), EngineOptions(max_num_seqs=2, max_num_batched_tokens=10)).generate(
        [Request(prompt, settings, prompt_logprobs=1)]
    )[0]
    ids = [*prompt, *answer.ids]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    tokens = answer.prompt_logprobs + answer.tokens
    assert tokens[0].logprob is None
    for place, token in enumerate(tokens[1:]):
        assert token.id == ids[place + 1]
        assert token.logprob == pytest.approx(float(expected[place, token.id]), abs=1e-4)
        assert token.top[0][1] == pytest.approx(float(expected[place].max()), abs=1e-4)
    assert [len(token.top) for token in answer.tokens] == [2] * 4


@pytest.mark.parametrize("kind, lines", [("gemma2", 1), ("qwen2", 0)])
def test_a_model_that_cannot_be_batched_is_said_once(
    kind: str, lines: int, make_model: MakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    from types import SimpleNamespace

    from npukit.inference.loading import start_engine

    loaded: Any = SimpleNamespace(model=make_model(kind))
    start_engine(loaded, EngineOptions(max_num_seqs=2))
    assert capsys.readouterr().err.count(kind) == lines


class Failing:
    """A grammar that fails before its second token, or after it."""

    def __init__(self, late: bool) -> None:
        self.late, self.count = late, 0
        self.is_finished = False

    def allowed(self) -> bytes:
        if self.count == 1 and not self.late:
            raise RuntimeError("planted")
        return b"\xff" * 100

    def accept(self, token: int) -> None:
        self.count += 1
        if self.count == 2:
            raise NpukitError("planted")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_an_error_in_one_request_ends_that_request_alone(kind: str, late: bool, make_model: MakeModel) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=6)
    alone = Engine(make_model(kind), EngineOptions(max_num_seqs=4)).generate([Request((5, 6, 7), greedy)])[0].ids
    engine = Engine(make_model(kind), EngineOptions(max_num_seqs=4))
    bad = Request((5, 6, 7), greedy, grammar=Failing(late))
    first, broken, last = engine.generate([Request((5, 6, 7), greedy), bad, Request((5, 6, 7), greedy)])
    assert first.ids == last.ids == alone
    assert broken.finish_reason == "error" and str(broken.error) == "planted" and len(broken.ids) == 1


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 2**63},
        {"seed": -1},
        {"temperature": float("nan")},
        {"logprobs": 301},
        {"logit_bias": {300: 1.0}},
        {"repetition_penalty": 0.0},
    ],
)
def test_numbers_that_cannot_be_computed_with_are_refused(sampling: dict[str, Any], make_model: MakeModel) -> None:
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=2))
    with pytest.raises(NpukitError):
        engine.add_request(Request((1, 2), SamplingParams(**sampling)))
    assert engine.is_idle
