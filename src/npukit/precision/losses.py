"""Find the losses of two runs in their dumps."""

from __future__ import annotations

from collections.abc import Iterator

from npukit.precision.dump import Call, Dump, Value
from npukit.precision.parts import parts_of
from npukit.precision.result import Loss


def losses_of(left: Dump, right: Dump, step: int, rank: int) -> tuple[Loss, ...]:
    """The losses of one step. If one run has more, they belong to parts of the batch and are summed.

    >>> losses_of(read(a), read(b), 0, 0)[0].left
    4.57
    """
    ours, theirs = (list(_losses(dump)) for dump in (left, right))
    if len(ours) != len(theirs):
        return (Loss(step, rank, sum(ours), sum(theirs)),) if ours and theirs and parts_of(left, right) else ()
    return tuple(Loss(step, rank, one, other) for one, other in zip(ours, theirs, strict=True))


def _losses(dump: Dump) -> Iterator[float]:
    """The values that backward passes start from: autograd creates their gradient, 1, with `ones_like`."""
    values = [call.inputs.get("0") for call in dump.calls if call.kind == "op" and call.op == "ones_like"]
    if not values:
        values = [_returned(call) for call in dump.calls if call.kind == "module" and not call.path]
    for value in values:
        if value is not None and value.is_float and value.shape == () and value.mean is not None:
            yield value.mean


def _returned(call: Call) -> Value | None:
    return call.outputs.get("loss", call.outputs.get("0")) if call.phase == "forward" else None
