"""What a long prompt leaves to others, in a scheduler without a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npukit.inference.engine.pool import BlockPool
from npukit.inference.engine.request import Request, SamplingParams, Token
from npukit.inference.engine.scheduler import Scheduler, SchedulerOutput
from npukit.inference.engine.sequence import Sequence

BATCHED = 2048
LONG = 32 * 1024


def sequence(number: int, length: int, answer: int = 1000) -> Sequence:
    prompt = tuple((number * 7 + place) % 1000 for place in range(length))
    return Sequence(number, Request(prompt, SamplingParams(temperature=0)), list(prompt), length + answer)


@pytest.fixture(params=[0, 256], ids=["prompts apart", "prompts beside"])
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    return Scheduler(BlockPool(10_000, 16), 64, BATCHED, max_num_mixed_tokens=request.param)


def run(scheduler: Scheduler, until: Callable[[], bool]) -> list[SchedulerOutput]:
    """The steps until then; in each, all that are running get a token, and no pass is too large."""
    steps = []
    while not until():
        answering = {each for each in scheduler.running if not each.is_prefilling}
        step = scheduler.schedule()
        assert set(step.decodes) == answering
        assert sum(chunk.stop - chunk.start for chunk in step.prefills) <= BATCHED
        mixed = len(step.decodes) + sum(chunk.stop - chunk.start for chunk in step.mixed)
        assert not step.mixed or mixed <= scheduler.max_num_mixed_tokens
        for each in step.sampled:
            each.num_in_flight -= 1
            each.tokens.append(Token(5).id)
        steps.append(step)
    return steps


def test_answers_go_on_while_a_long_prompt_is_read(scheduler: Scheduler) -> None:
    short = [sequence(number, 20) for number in range(16)]
    scheduler.waiting.extend(short)
    run(scheduler, lambda: len(scheduler.running) == 16)
    long = sequence(16, LONG)
    scheduler.waiting.append(long)
    steps = run(scheduler, lambda: len(long.tokens) > LONG)
    assert len(steps) == LONG // BATCHED
    assert all(len(each.tokens) > 20 + len(steps) for each in short)


def test_prompts_that_come_later_do_not_wait_for_a_long_one(scheduler: Scheduler) -> None:
    long, longer = sequence(0, LONG), sequence(1, LONG)
    scheduler.waiting.extend([long, longer])
    run(scheduler, lambda: long.num_computed_tokens >= 4 * BATCHED)
    assert not longer.num_computed_tokens  # alone, each has whole passes
    for number in range(2, 6):
        scheduler.waiting.append(later := sequence(number, 100))
        assert len(run(scheduler, lambda later=later: len(later.tokens) > 100)) == 1
    steps = run(scheduler, lambda: len(long.tokens) > LONG)
    assert len(steps) <= LONG // BATCHED - 4 - 1
