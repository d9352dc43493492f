"""What is compared, and what is called different."""

from __future__ import annotations

import math

from npukit.verify.compare import Figures, Tolerance, compare, worth_comparing
from npukit.verify.figure import Figure, difference
from npukit.verify.result import Compared, RunResult, Verification
from npukit.verify.text import as_text


def losses(*values: float, name: str = "loss") -> Figures:
    return {("loss", name): [Figure(name, value) for value in values]}


def first(before: Figures, after: Figures) -> tuple[int, float | None, float | None] | None:
    divergence = compare(before, after, Tolerance())[1]
    return (divergence.number, divergence.before, divergence.after) if divergence else None


def test_the_first_loss_beyond_the_tolerance_or_missing() -> None:
    assert first(losses(1, 2, 3), losses(1, 2.0001, 3)) is None
    assert first(losses(1, 2, 3), losses(1, 2.1, 3)) == (2, 2, 2.1)
    assert first(losses(1, 2), losses(1)) == (2, 2, None)
    assert first(losses(1, 2), losses(1, 2, name="other")) == (1, 1, None)


def test_what_never_changes_or_is_no_number_is_no_loss() -> None:
    figures = {
        **losses(1, 1, 1, name="loss a"),
        **losses(math.nan, math.nan, name="loss b"),
        **losses(3, name="loss c"),
    }
    assert list(worth_comparing(figures)) == [("loss", "loss c")]


def test_numbers_that_are_none() -> None:
    nan = Figure("loss", math.nan)
    assert difference(nan, nan) == 0
    assert difference(Figure("loss", 1.0), nan) == math.inf
    assert difference(Figure("loss", 0.0), Figure("loss", 0.0)) == 0


def test_a_loss_near_zero_is_compared_by_the_size_of_the_others() -> None:
    assert first(losses(1.0, 1e-9), losses(1.0, 3e-9)) is None
    assert first(losses(1.0, 0.01), losses(1.0, 0.0101)) == (2, 0.01, 0.0101)


def test_tensors_of_the_same_length_that_point_elsewhere_differ() -> None:
    key = ("gradients", "")
    one, other = Figure("", 2.0, direction=0.5), Figure("", 2.0, direction=0.6)
    assert first({key: [one]}, {key: [one]}) is None
    assert first({key: [one]}, {key: [other]}) == (1, 2.0, 2.0)
    coarse = Figure("", 2.0, direction=0.5, rounding=2**-7)
    assert first({key: [coarse]}, {key: [other]}) is None, "half precision rounds in different places"


def test_a_setting_that_only_one_optimizer_has_is_not_compared() -> None:
    lr = Figure("lr", 0.1)
    assert first({("settings", "lr"): [lr], ("settings", "foreach"): [lr]}, {("settings", "lr"): [lr]}) is None
    assert first({("settings", "lr"): [lr]}, {("settings", "lr"): [Figure("lr", 0.2)]}) == (1, 0.1, 0.2)


def test_what_was_compared_stands_apart_from_what_a_failed_run_printed() -> None:
    before, after = RunResult("the CPU", 0, 1.0, ""), RunResult("an NPU", 1, 1.0, "TypeError: no")
    compared = Compared("loss", "loss", 2, 1.5, 1.25, 0.0, 1e-4)
    result = Verification(False, 1e-4, (compared,), (), before, after, None, 3, (), (), ())
    lines = as_text(result).split("\n")
    printed = lines.index("  TypeError: no")
    assert lines[printed + 1] == "" and lines[printed + 2] and not lines[printed + 2].startswith(" ")
