"""The roofline, and the facts it rests on."""

from __future__ import annotations

import pytest

from npukit.facts.models import known_model
from npukit.facts.planning import Speed, planning, speed_of
from npukit.performance.plan.work import PlannedWork, step_time

SPEED = Speed(flops=1e14, bandwidth=1e12, link=1e11, network=1e10)


def test_an_operator_takes_as_long_as_its_scarcer_resource() -> None:
    computing = step_time([PlannedWork("matmul", 1e14, 1e9, 1)], SPEED)
    moving = step_time([PlannedWork("vector", 1e9, 1e12, 1)], SPEED)
    assert computing and moving
    low, high = planning().compute
    assert computing.compute == pytest.approx((1 / high, 1 / low)) and computing.memory == (0, 0)
    assert moving.memory[0] == pytest.approx(1 / planning().memory[1]) and moving.compute == (0, 0)


def test_many_small_operators_are_bound_by_the_host() -> None:
    time = step_time([PlannedWork("vector", 0, 1e6, 10_000)], SPEED)
    assert time and time.step == time.host and time.host[0] == pytest.approx(planning().launch_us[0] * 1e-2)


def test_ranks_on_several_servers_exchange_over_the_network() -> None:
    work = [PlannedWork("matmul", 1e12, 0, 1), PlannedWork("collective", 0, 1e10, 1)]
    near, far = step_time(work, SPEED), step_time(work, SPEED, between_servers=True)
    assert near and far and far.collectives[0] > 5 * near.collectives[0] and far.step[1] > near.step[1]
    assert step_time(work, Speed(1e14, 1e12)) is None, "no link is known"


def test_figures_of_cards_and_gpus() -> None:
    card, gpu = speed_of("910b3"), speed_of("H200")
    assert card and gpu and card.link > card.network > 0 and gpu.bandwidth > card.bandwidth
    assert gpu.link > gpu.network > 0, "a plan for several GPUs has a time"
    assert speed_of("910A") is None and speed_of("unheard-of") is None


def test_a_well_known_name_stands_for_its_variants_alone() -> None:
    assert known_model("qwen/Qwen2-7B-Instruct") == known_model("Qwen2-7B") != known_model("Qwen2-72B")
    assert known_model("Qwen2-7Bx") is None and known_model("someone/else") is None
    assert known_model("llama3-8b") == known_model("Meta-Llama-3-8B-Instruct") != known_model("Llama-3.2-1B")
    assert known_model("Qwen2.5-72B") != known_model("Qwen2.5-7B") and known_model("Llama-3.2-11B-Vision") is None
