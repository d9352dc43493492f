"""Pair the calls of two runs: first by module, then by the order of calls inside each module."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from npukit.precision.dump import Call, Value

Pair = tuple[Call | None, Call | None]
# What DDP, FSDP, torch.compile, activation checkpointing, DeepSpeed and PEFT add to module paths.
_WRAPPERS = re.compile(
    r"(?:^|\.)(?:_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|_forward_module|base_layer)(?=\.|$)"
)
_OUTER = re.compile(r"^(?:(?:module|base_model\.model|base_model)(?:\.|$))+")
# Kernels that devices use for the same operation, and the in-place form of an operator.
_FAMILIES = dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "npu_linear"), "matmul")
_FAMILIES |= dict.fromkeys(("native_layer_norm", "layer_norm", "npu_layer_norm_eval"), "layer_norm")
_FAMILIES |= dict.fromkeys(("convolution", "_convolution", "npu_convolution", "npu_conv2d", "conv2d"), "convolution")
_FAMILIES |= dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"), "batch_norm")
_LONGEST = 4000  # longer sequences use difflib's heuristics, because exact alignment is quadratic


@dataclass(frozen=True)
class Alignment:
    """The pairs, in the order of the left run. A call that only one run made is paired with None."""

    pairs: tuple[Pair, ...]
    renames: Mapping[str, str]  # from left module paths to right ones, as guessed


def align(left: Sequence[Call], right: Sequence[Call], rename: Mapping[str, str] | None = None) -> Alignment:
    """Pair the calls of two runs. `rename` maps module paths (or prefixes) of the left run to those of the right.

    >>> align(read(a).calls, read(b).calls).pairs[0]
    """
    ours = [replace(call, path=_renamed(plain_path(call.path), rename or {})) for call in left]
    theirs = [replace(call, path=plain_path(call.path)) for call in right]
    guessed = guess_renames(ours, theirs)
    ours = [replace(call, path=guessed.get(call.path, call.path)) for call in ours]
    groups: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    parameters = [parameters_of(calls) for calls in (ours, theirs)]
    known = {*parameters[0].values()} & {*parameters[1].values()}
    for side, calls in enumerate((ours, theirs)):
        for place, call in enumerate(calls):
            parameter = parameters[side].get(call.name)
            groups[call.kind, call.phase, call.path, parameter if parameter in known else ""][side].append(place)
    partner: dict[int, int] = {}
    for mine, other in groups.values():
        partner.update(_match(ours, theirs, mine, other))
    return Alignment(tuple(_in_order(left, right, partner)), guessed)


def plain_path(path: str) -> str:
    """Strip from a module's path what wrappers such as DDP added.

    >>> plain_path("module._orig_mod.layers.0._fsdp_wrapped_module.mlp")
    'layers.0.mlp'
    """
    return _OUTER.sub("", _WRAPPERS.sub("", path).strip("."))


def guess_renames(left: Sequence[Call], right: Sequence[Call]) -> dict[str, str]:
    """Guess which modules were renamed, from their class, the shapes of their outputs and their order."""
    ours, theirs = (
        {call.path: call for call in calls if call.kind == "module" and call.phase == "forward"}
        for calls in (left, right)
    )
    mine = [path for path in ours if path not in theirs]
    others = [path for path in theirs if path not in ours]
    tokens = [
        [(calls[path].op.lower(), _shapes(calls[path])) for path in paths]
        for calls, paths in ((ours, mine), (theirs, others))
    ]
    return {mine[i]: others[j] for i, j in _equal_positions(tokens[0], tokens[1])}


def _renamed(path: str, rename: Mapping[str, str]) -> str:
    for old, new in rename.items():
        if path == old or path.startswith(f"{old}."):
            return f"{new}{path[len(old) :]}".strip(".")
    return path


def parameters_of(calls: Sequence[Call]) -> dict[str, str]:
    """Map each operator of an optimizer's step to the parameter it updates, if there is exactly one.

    Operators that use each other's results form a group; the gradient that the group reads identifies the parameter.
    """
    names: dict[str, str] = {}  # by the gradient's hash; "" if several parameters have that gradient
    for call in calls:
        for place, value in call.outputs.items() if call.kind == "gradients" else ():
            names[value.hash] = "" if value.hash in names else f"{call.path}.{place}"
    rows: dict[str, list[str]] = {}  # from each row to all rows of its group
    read: dict[str, set[str]] = defaultdict(set)  # the parameters whose gradients a row reads
    for call in calls:
        if call.kind != "op" or call.phase != "optimizer":
            continue
        rows[call.name] = [call.name]
        for value in call.inputs.values():
            if (others := rows.get(value.maker)) is not None and others is not rows[call.name]:
                others += rows[call.name]
                for name in rows[call.name]:
                    rows[name] = others
            if name := names.get(value.hash, ""):
                read[call.name].add(name)
    together = {id(members): members for members in rows.values()}.values()
    whose = [(members, set().union(*(read[row] for row in members))) for members in together]
    return {row: name for members, of in whose if len(of) == 1 for name in of for row in members}


def _match(
    left: Sequence[Call], right: Sequence[Call], mine: Sequence[int], other: Sequence[int], level: int = 0
) -> Iterator[tuple[int, int]]:
    """Pair the calls of one module: exact matches first, then looser matches between them."""
    if not mine or not other:
        return
    if level == len(_LEVELS):  # the same operators in the same order, on different shapes
        names = [[_name(calls[place]) for place in places] for calls, places in ((left, mine), (right, other))]
        yield from zip(mine, other, strict=True) if names[0] == names[1] else ()
        return
    i = j = 0
    tokens = [[_LEVELS[level](calls[place]) for place in places] for calls, places in ((left, mine), (right, other))]
    for i_end, j_end in [*_equal_positions(*tokens), (len(mine), len(other))]:
        yield from _match(left, right, mine[i:i_end], other[j:j_end], level + 1)
        if i_end < len(mine):
            yield mine[i_end], other[j_end]
        i, j = i_end + 1, j_end + 1


def called_like(left: Call, right: Call) -> Call:
    """The right call, with its tensors in the places and shapes that the left call has for them.

    This matters only if the operators differ: one device fuses the bias into the matrix product, where it becomes the
    first argument, and one flattens the rows of a product that another leaves in several dimensions.

    >>> list(called_like(addmm, mm).inputs)
    ['1', '2']
    """
    if left.op == right.op or left.kind != "op":
        return right
    waiting = [value for value in right.inputs.values() if value.is_tensor]
    inputs: dict[str, Value] = {}
    for place, value in left.inputs.items():
        if match := next((other for other in waiting if value.is_tensor and _as_rows(other) == _as_rows(value)), None):
            waiting.remove(match)
            inputs[place] = replace(match, shape=value.shape)
    outputs = {place: _in_shape_of(left.outputs.get(place), value) for place, value in right.outputs.items()}
    return replace(right, inputs=inputs, outputs=outputs)


def _in_shape_of(left: Value | None, right: Value) -> Value:
    return replace(right, shape=left.shape) if left and _as_rows(left) == _as_rows(right) else right


def _as_rows(value: Value) -> tuple[int, int]:
    """The shape as a matrix: all dimensions but the last flattened."""
    width = value.shape[-1] if value.shape else 1
    return (value.count // width if width else 0, width)


def _exact_key(call: Call) -> tuple[Hashable, ...]:
    return (
        call.op if call.kind == "op" else "",
        _shapes(call),
        tuple(value.shape for value in call.inputs.values() if value.is_tensor),
    )


def _input_key(call: Call) -> Hashable:
    """The same operator on the same input shapes. Arguments such as topk's `k` may give another output shape."""
    return _exact_key(call)[::2]


def _loose_key(call: Call) -> Hashable:
    name = _name(call)
    if name == "matmul":
        return name, tuple(_as_rows(output) for output in list(call.outputs.values())[:1])
    # Sorted, because the other run may have the dimensions in a different order.
    return name, tuple(tuple(sorted(shape)) for shape in _shapes(call)[:1])


def _name(call: Call) -> str:
    name = call.op.rstrip("_")
    return _FAMILIES.get(name, name) if call.kind == "op" else ""


_LEVELS = (_exact_key, _input_key, _loose_key)


def _shapes(call: Call) -> tuple[tuple[int, ...], ...]:
    return tuple(output.shape for output in call.outputs.values() if output.is_tensor)


def _equal_positions(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The positions of equal items in the best alignment of two sequences."""
    start, end = 0, min(len(left), len(right))
    while start < end and left[start] == right[start]:
        start += 1
    back = 0
    while back < end - start and left[-1 - back] == right[-1 - back]:
        back += 1
    middle = left[start : len(left) - back], right[start : len(right) - back]
    pairs = [(place, place) for place in range(start)]
    if all(middle):
        junk = max(map(len, middle)) > _LONGEST
        for block in difflib.SequenceMatcher(None, *middle, autojunk=junk).get_matching_blocks():
            pairs += [(start + block.a + n, start + block.b + n) for n in range(block.size)]
    return [*pairs, *((len(left) - n, len(right) - n) for n in range(back, 0, -1))]


def _in_order(left: Sequence[Call], right: Sequence[Call], partner: Mapping[int, int]) -> Iterator[Pair]:
    """Every call once, in the order of the left run. Calls of the right run alone keep their predecessors."""
    taken = set(partner.values())
    after: dict[int, list[Call]] = defaultdict(list)  # by the last paired call of the right run that precedes them
    last = -1
    for place, call in enumerate(right):
        if place in taken:
            last = place
        else:
            after[last].append(call)
    yield from ((None, call) for call in after.pop(-1, ()))
    for place, call in enumerate(left):
        other = partner.get(place)
        yield call, right[other] if other is not None else None
        if other is not None:
            yield from ((None, added) for added in after.pop(other, ()))
