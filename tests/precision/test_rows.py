"""Dumps made in memory, with one thing changed: which row is named first, of which kind, and with which known cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.precision.test_tolerance import value
from torch import Tensor

from npukit.precision.align import align
from npukit.precision.causes import causes_of
from npukit.precision.comparing import compare_dumps
from npukit.precision.dump import Call, Dump, Value
from npukit.precision.result import Comparison

BASE = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))


def off(size: float, of: Tensor = BASE) -> Tensor:
    """The tensor with a relative error of this size."""
    return of + size * NOISE


def op(name: str, output: Tensor, *inputs: Tensor | float, path: str = "layer", **more: Any) -> Call:
    given = {str(n): value(x) if isinstance(x, Tensor) else Value(scalar=x) for n, x in enumerate(inputs)}
    call = Call(f"Aten.{name}.0.forward", "op", name, path, "forward", 0, given, {"0": value(output)})
    return replace(call, **more)


def compared(left: Call | list[Call], right: Call | list[Call]) -> Comparison:
    sides = (calls if isinstance(calls, list) else [calls] for calls in (left, right))
    return compare_dumps(*(Dump(Path(name), tuple(calls)) for name, calls in zip("ab", sides, strict=True)))


NPU = {
    "accelerator": "npu",
    "npu.conv.allow_hf32": True,
    "npu.matmul.allow_hf32": True,
    "deterministic_algorithms": False,
}
X, W = BASE, BASE.T.contiguous()
STEPS = {"phase": "optimizer", "path": ""}
CAUSES: dict[str, tuple[str, Callable[[], tuple[Any, Any]]]] = {
    "hf32-convolution": ("operator", lambda: (op("convolution", X, W), op("convolution", off(1e-3), W))),
    "tf32-matmul": ("operator", lambda: (op("mm", X, W), op("mm", off(1e-3), W))),
    "random-numbers": (
        "random",
        lambda: ([op("bernoulli", X, W), op("mul", W, X)], [op("bernoulli", off(1.0), W), op("mul", W, off(1.0))]),
    ),
    "other-weights": ("source", lambda: (op("mm", X, W), op("mm", off(0.5), off(0.5, W)))),
    "inf-nan-mode": (
        "nonfinite",
        lambda: (op("exp", X.clone().fill_(torch.finfo().max), W), op("exp", X.clone().fill_(torch.inf), W)),
    ),
    "other-type": ("dtype", lambda: (op("mul", X, W), op("mul", off(0.1).bfloat16(), W))),
    "other-settings": (
        "argument",
        lambda: (op("mul_", X, W, 0.9, **STEPS), op("mul_", off(0.1), W, 0.99, **STEPS)),
    ),
    "nondeterministic-reduction": ("operator", lambda: (op("sum", X, W), op("sum", off(5e-4), W))),
}  # fmt: skip


@pytest.mark.parametrize("code", CAUSES)
def test_the_known_cause_of_a_difference(code: str) -> None:
    kind, calls = CAUSES[code]
    first = compared(*calls()).first
    assert first is not None
    assert first.kind == kind
    assert code in [cause.code for cause in causes_of(first, ({}, NPU))]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (op("convolution", X, W), op("convolution", off(1e-3), W)),  # of this size, but nothing was set to HF32
        (op("sum", X, W), op("sum", off(5e-4), W)),
        (op("clamp", X, W), op("clamp", X.clone().fill_(torch.inf), W)),  # Inf where the other has no largest number
    ],
    ids=["HF32", "order of additions", "saturation"],
)
def test_no_cause_is_named_that_the_record_does_not_show(left: Call, right: Call) -> None:
    first = compared(left, right).first
    assert first is not None and causes_of(first, ({"accelerator": "cpu", "cudnn.allow_tf32": True}, {})) == ()


def test_a_tensor_that_its_maker_left_otherwise_was_changed_unrecorded() -> None:
    """An error that only the reader finds too large is none that came between."""
    maker, changed = op("mul", X, W), replace(op("mm", X, X), name="Aten.mm.0.forward")
    assert _between([maker, changed], [maker, op("mm", off(0.1), off(0.1))]) == "between"
    nearly = [op("mul", X.bfloat16(), W), op("mul", off(5e-3).bfloat16(), W)]
    between = _between([nearly[0], op("mm", X, X)], [nearly[1], op("mm", off(5e-3), off(5e-3).bfloat16().float())])
    assert between != "between"


def _between(left: list[Call], right: list[Call]) -> str:
    for calls in (left, right):
        given = calls[1].inputs["0"]
        calls[1] = replace(calls[1], inputs={"0": replace(given, maker=calls[0].name)})
    first = compared(left, right).first
    assert first is not None
    return first.kind


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (op("mm", X, W), op("mm", off(1e-6), W)),  # rounding in float32
        (op("mm", X.bfloat16(), W.bfloat16()), op("mm", off(2e-3).bfloat16(), W.bfloat16())),
        (op("gelu", off(1e-4), off(1e-4, W)), op("gelu", X, W)),  # the input was as far apart already
        (op("mm", X, W), op("addmm", off(1e-6), W)),  # another kernel of the same product
        (op("mm", X, W), op("matmul", off(1e-6).view(4, 16, 64), W)),  # its rows in several dimensions
        (op("relu", X, W), op("relu_", X, W)),
        (op("mm", X, W, path="module.layer"), op("mm", X, W, path="_orig_mod.layer")),  # DDP and torch.compile
    ],
    ids=["rounding", "bf16", "inherited", "family", "rows", "in place", "wrappers"],
)
def test_what_two_right_runs_differ_by(left: Call, right: Call) -> None:
    comparison = compared(left, right)
    assert comparison.first is None
    assert comparison.coverage == 1


def test_an_error_that_grows_is_named_where_it_begins() -> None:
    """What comes later inherits it, and is not blamed."""
    left = [op("mm", X, W), op("softmax", W, X), op("mul", X, W, path="head")]
    right = [op("mm", X, W), op("softmax", off(0.1, W), X), op("mul", off(0.1), off(0.1, W), path="head")]
    first = compared(left, right).first
    assert first is not None
    assert (first.row.left, first.kind) == ("Aten.softmax.0.forward", "operator")


def test_calls_that_one_run_has_more_do_not_shift_the_others() -> None:
    names = ["mm", "relu", "mm", "softmax"]
    left = [op(name, X, W) for name in names]
    right = [op("cast", X, W), *left[:2], op("clone", X, W), *left[2:]]
    pairs = [(one.op if one else "", other.op if other else "") for one, other in align(left, right).pairs]
    assert pairs == [("", "cast"), ("mm", "mm"), ("relu", "relu"), ("", "clone"), ("mm", "mm"), ("softmax", "softmax")]


def test_modules_are_renamed_as_told_or_by_class_and_shape() -> None:
    left = [replace(op("Linear", X, W, path=f"transformer.h.{n}"), kind="module") for n in range(2)]
    right = [replace(op("Linear", X, W, path=f"model.layers.{n}"), kind="module") for n in range(2)]
    guessed, renamed = align(left, right), align(left, right, {"transformer.h": "model.layers"})
    assert guessed.renames == {"transformer.h.0": "model.layers.0", "transformer.h.1": "model.layers.1"}
    assert renamed.renames == {}
    for aligned in (guessed, renamed):
        assert all(one and other and one.path[-1] == other.path[-1] for one, other in aligned.pairs)


def test_a_module_that_no_gradient_enters_is_not_where_a_difference_begins() -> None:
    def rotary(output: Tensor) -> Call:
        return Call("Module.rotary.backward.0", "module", "Rotary", "rotary", "backward", 0, {}, {"0": value(output)})

    assert compared(rotary(BASE), rotary(off(1e-6))).first is None


def test_another_probability_is_a_setting_and_no_chance() -> None:
    left, right = (
        [op("bernoulli_", drawn, W, keep), op("mul", W, drawn)] for drawn, keep in ((X, 0.9), (off(1.0), 0.7))
    )
    first = compared(left, right).first
    assert first is not None and first.kind == "argument"


def test_a_constant_does_not_tell_who_made_it() -> None:
    zeros, counted = torch.zeros(4, 4), torch.full((4, 4), 100.0)
    made = op("zeros", zeros, path="other")
    first = compared([made, op("add_", zeros + 1, zeros)], [made, op("add_", counted + 1, counted)]).first
    assert first is not None and first.kind == "source"


def test_data_in_an_order_that_its_sketch_does_not_tell() -> None:
    image = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(2))
    first = compared(op("convolution", X, image, W), op("convolution", off(1.0), image.flip(0), W)).first
    assert first is not None and first.kind == "source"


def test_an_operator_that_returns_the_same_from_other_inputs_is_no_difference() -> None:
    assert compared(op("mm", X, X, W), op("mm", off(1e-8), off(1.0), W)).first is None
    assert compared(op("mm", X, X, W), op("mm", off(0.1), off(1.0), W)).first is not None


@pytest.mark.parametrize(("chunks", "is_same"), [(2, True), (1, False)])
def test_a_module_called_in_parts_is_not_compared_part_by_part(chunks: int, is_same: bool) -> None:
    def run(parts: int) -> list[Call]:
        head = Call("Module.head.forward.0", "module", "Linear", "head", "forward", 0, {"0": value(X)}, {})
        calls = [replace(head, name=f"Module.head.forward.{part}", number=part) for part in range(parts)]
        return [*calls, op("mm", off(parts - 1.0), X[: 64 // parts], path="head", phase="backward")]

    whole, parts = run(1), run(chunks)
    changed = [replace(call, outputs={"0": value(off(0.5))}) if call.kind == "op" else call for call in parts]
    assert (compared(whole, changed).first is None) is is_same


def test_sums_of_a_backward_pass_are_paired_by_what_they_add() -> None:
    def run(name: str, size: float) -> list[Call]:
        made = op(name, off(size), W, phase="backward")
        added = op("add", off(size, W), off(size), path="", phase="backward")
        return [made, replace(added, inputs={"0": replace(added.inputs["0"], maker=made.name)})]

    assert compared(run("mm", 0.0), run("mul", 1.0)).first is None


@pytest.mark.parametrize(("output", "is_later", "named"), [(X, False, True), (X, True, False), (off(0.1), True, True)])
def test_weights_that_rounding_moved_apart_without_an_effect(output: Tensor, is_later: bool, named: bool) -> None:
    """As Adam moves the bias of attention's keys, whose gradient is nothing but rounding, from the second step on."""

    def attention(bias: Tensor, output: Tensor) -> Dump:
        call = Call("Module.attention.forward.0", "module", "Attention", "attention", "forward", 0)
        inputs = {"0": value(W), "parameters.bias": value(bias)}
        return Dump(Path("dump"), (replace(call, inputs=inputs, outputs={"0": value(output)}),))

    compared = compare_dumps(attention(BASE, X), attention(off(1e-3), output), is_later=is_later)
    assert (compared.first is not None) == named


def test_gradients_may_be_added_up_in_another_order() -> None:
    def run(order: str, last: float) -> list[Call]:
        made = op("mm", X, W, phase="backward")
        before = replace(op("add", off(1.0), X, off(1.0, W), path="", phase="backward"), name="Aten.add.1.forward")
        total = op("add", off(2.0) if order else X, off(1.0) if order else X, path="", phase="backward")
        after = op("mul", off(last), X, path="other", phase="backward")
        given = replace(total.inputs["0"], maker=before.name if order else made.name)
        return [made, *([before] if order else []), replace(total, inputs={"0": given}), after]

    assert compared(run("", 0.0), run("another", 0.0)).first is None
    first = compared(run("", 0.0), run("another", 0.1)).first
    assert first is not None and "mul in other" in first.what
