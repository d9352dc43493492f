"""One operator's samples on the CPU and on a simulated NPU, in every way in which it can be called."""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

LOOKED_AT = 30  # the first samples, of which some are drawn
HALVES = (torch.float16, torch.bfloat16)
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.complex32: 2e-2}  # else torch's
TOLERANCE |= {torch.float32: 1e-4, torch.complex64: 1e-4}  # sums in another order
UNCOMPARED = (
    *("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "uniform", "exponential"),
    *("cauchy", "geometric", "log_normal", "rrelu", "svd_lowrank", "pca_lowrank", "resize", "gumbel_softmax"),
    *("fractional_max_pool", "feature_alpha_dropout"),
)
Way = tuple[str, Callable[[Any], Any], Any]


def findings(op: Any, most: int, at: Callable[[str], None]) -> Iterator[tuple[str, str, str, str]]:
    """The way, the dtype, what came out (`equal`, `differ`, who refuses) and how it differs, of every trial."""
    compared = not any(part in op.name for part in UNCOMPARED)
    for dtype in sorted(op.supported_dtypes("cpu"), key=str):
        for backward in (False, True):
            if backward and dtype not in op.supported_backward_dtypes("cpu"):
                continue
            at(f"samples\t{dtype}")
            for sample in drawn(op, dtype, backward, most):
                drops = sample.kwargs.get("dropout_p") or ("attention" in op.name and sample.kwargs.get("training"))
                for way, function, inputs in ways(op, sample, backward):
                    at(f"{way}\t{dtype}")
                    yield way, str(dtype).removeprefix("torch."), *trial(function, inputs, compared and not drops)


def without_cuda_seeds() -> None:
    """Samples seed every device, and a CUDA that is not there notes each time from where: half of the time."""
    torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = lambda seed: None


def drawn(op: Any, dtype: torch.dtype, backward: bool, most: int) -> list[Any]:
    """Some of an operator's samples, the same ones in every run."""
    torch.manual_seed(0)
    with contextlib.suppress(Exception):
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), LOOKED_AT))
        return random.Random(op.name).sample(samples, min(most, len(samples)))
    return []


def trial(function: Callable[[Any], Any], sample: Any, compared: bool) -> tuple[str, str]:
    """What came out on both devices, compared, and how it differs."""
    try:
        on_cpu, on_npu = (sample.transform(lambda each, to=to: moved(each, to)) for to in ("cpu", "npu"))
    except Exception as error:
        return "not moved", sentence(error)
    state = torch.get_rng_state()
    expected, refused = outcome(function, on_cpu)
    torch.set_rng_state(state)
    got, refused_there = outcome(function, on_npu)
    if refused or refused_there:
        kind = "both refuse" if refused and refused_there else "NPU refuses" if refused_there else "CPU refuses"
        return kind, refused_there or refused
    difference = compare(expected, got, compared)
    if difference and not compare(outcome(function, on_cpu.transform(widened))[0], got, compared, rounded=True):
        return "equal to fp32, rounded once", ""
    return ("differ", difference) if difference else ("equal", "")


def widened(tree: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype in HALVES else t, tree)


def moved(value: Any, device: str) -> Any:
    """Tensors in whatever holds them, on a device, on a memory of the same size with the same strides."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.detach().clone().to(device).requires_grad_(tensor.requires_grad)
        plain = tensor.detach()
        plain = plain.conj() if plain.is_conj() else plain
        plain = plain._neg_view() if plain.is_neg() else plain
        storage = plain.as_strided((plain.untyped_storage().nbytes() // plain.element_size(),), (1,), 0)
        copy = storage.clone().to(device).as_strided(plain.shape, plain.stride(), plain.storage_offset())
        copy = copy._neg_view() if tensor.is_neg() else copy
        copy = copy.conj() if tensor.is_conj() else copy
        return copy.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, move, value)


def ways(op: Any, sample: Any, backward: bool) -> Iterator[Way]:
    """How a sample can be computed: a name, a function of the sample, the sample."""

    def call(sample: Any) -> Any:
        return op.op(sample.input, *sample.args, **sample.kwargs)

    if backward:
        yield "backward", lambda sample: gradients(op, sample), sample
        with contextlib.suppress(Exception):
            yield "strided backward", lambda sample: gradients(op, sample), sample.noncontiguous()
        return
    yield "function", call, sample
    if op.inplace_variant and isinstance(sample.input, torch.Tensor):
        yield "in place", lambda sample: op.inplace_variant(sample.input.clone(), *sample.args, **sample.kwargs), sample
    with contextlib.suppress(Exception):
        yield "strided", call, sample.noncontiguous()
    if isinstance(sample.input, torch.Tensor) and sample.input.dim():
        yield "expanded", call, sample.transform(changed(lambda tensor: tensor[:1].expand(tensor.shape)))
        yield "empty", call, sample.transform(changed(lambda tensor: tensor[:0]))
    if op.supports_out:
        yield "out=", lambda sample: with_out(op, sample, same=True), sample
        yield "out= resized", lambda sample: with_out(op, sample, same=False), sample


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def one(value: Any) -> Any:
        return (
            change(value)
            if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim()
            else value
        )

    return one


def with_out(op: Any, sample: Any, same: bool) -> Any:
    """Into tensors of the right size, full of something else, or of size 0."""
    result = op.op(sample.input, *sample.args, **sample.kwargs)

    def out(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, 1) if same else torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    made = tree_map_only(torch.Tensor, out, result)
    made = tuple(made) if isinstance(result, tuple | list) else made
    op.op(sample.input, *sample.args, **sample.kwargs, out=made)
    return made


def gradients(op: Any, sample: Any) -> Any:
    """Of all inputs, for gradients of the results that are the same on every device."""
    result = sample.output_process_fn_grad(op.op(sample.input, *sample.args, **sample.kwargs))
    outputs = [tensor for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    inputs = [tensor for tensor in leaves if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    if not outputs or not inputs:
        return None
    generator = torch.Generator().manual_seed(0)
    incoming = [
        torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype).to(tensor.device)
        for tensor in outputs
    ]
    return torch.autograd.grad(outputs, inputs, incoming, allow_unused=True)


def outcome(function: Callable[[Any], Any], sample: Any) -> tuple[Any, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(sample), ""
    except Exception as error:
        return None, sentence(error)


def sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def compare(expected: Any, got: Any, values: bool, rounded: bool = False) -> str:
    """How the results differ, or nothing; what is expected may have to be rounded to half precision first."""
    left, right = tree_leaves(expected), tree_leaves(got)
    if len(left) != len(right):
        return f"{len(right)} results, {len(left)} expected"
    for first, second in zip(left, right, strict=True):
        if not isinstance(first, torch.Tensor):
            if values and first != second and first == first:
                return f"{second}, {first} expected"
            continue
        if second is None:
            return "nothing, a tensor expected"
        first = first.to(second.dtype) if rounded and second.dtype in HALVES else first
        if first.shape != second.shape or first.dtype != second.dtype:
            return f"{second.dtype} {tuple(second.shape)}, {first.dtype} {tuple(first.shape)} expected"
        if not values or not first.numel():
            continue
        bound = TOLERANCE.get(first.dtype)
        try:
            torch.testing.assert_close(second.cpu(), first, equal_nan=True, rtol=bound, atol=bound)
        except AssertionError as error:
            return str(error).replace("\n", " ")[:200]
    return ""
