"""dump.json, stack.json and construct.json, as msprobe and npukit write them."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.precision.dump import BUCKETS, Call, Dump, Value

_MODULE = re.compile(
    r"Module\.(?:(?P<path>.+)\.)?(?P<kind>[^.]+)\.(?P<direction>forward|backward|parameters_grad)\.(?P<number>\d+)"
)
_API = re.compile(r"(?P<prefix>[A-Za-z]+)\.(?P<op>.+?)\.(?P<number>\d+)\.(?P<direction>forward|backward)")
_LARGEST = 2 << 30
ROOT = "root"


def read_msprobe(file: Path) -> Dump:
    """The rows of a dump.json.

    >>> read_msprobe(Path("dump/step0/rank0/dump.json")).calls[0].title
    """
    content = load(file)
    data = content.get("data")
    if not isinstance(data, dict):
        raise NpukitError(f"{file} is not a dump: it has no object named data.")
    parents = _beside(file, "construct.json")
    stacks = dict(_stacks(_beside(file, "stack.json")))
    tensors = _tensor_folder(file, content.get("dump_data_dir"))
    calls = [_call(name, row, parents.get(name), stacks.get(name, ()), tensors) for name, row in data.items()]
    source = "npukit" if isinstance(content.get("npukit"), str) else "msprobe"
    return Dump(
        file,
        tuple(call for call in calls if call),
        _number(file.parent.parent, "step"),
        _number(file.parent, "rank"),
        source,
    )


def load(file: Path) -> dict[str, Any]:
    """A JSON file that contains a mapping. From a truncated file of ours, everything that is complete."""
    try:
        if file.stat().st_size > _LARGEST:
            raise NpukitError(f"{file} is larger than 2 GiB: capture fewer steps, or with --only.")
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NpukitError(f"{file} is not UTF-8 text, as dumps are: is it damaged?") from None
    except OSError as error:
        raise NpukitError(f"Cannot read {file}: {(error.strerror or str(error)).lower()}.") from None
    try:
        content = json.loads(text)
    except RecursionError:
        raise NpukitError(f"{file} is nested too deeply to be a dump.") from None
    except ValueError as error:
        content = _complete_rows(text)
        if content is None:
            where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "a number"
            raise NpukitError(
                f"{file} is not valid JSON ({where}): it is damaged, or the run was killed while it was written."
            ) from None
    if not isinstance(content, dict):
        raise NpukitError(f"{file} is not a dump: it holds a {type(content).__name__}, not a map.")
    return content


def _complete_rows(text: str) -> Any:
    """Our files have one row per line, so that removing the incomplete last line makes them valid again."""
    if '"npukit"' not in text[:2000] or '"data": {' not in text[:4000]:
        return None
    rows = text.rsplit("\n", 1)[0].rstrip().removesuffix(",")
    try:
        return json.loads(rows + "\n}}")
    except (ValueError, RecursionError):
        return None


def _beside(file: Path, name: str) -> dict[str, Any]:
    other = file.with_name(name)
    return load(other) if other.is_file() and other.stat().st_size else {}


def _number(folder: Path, prefix: str) -> int | None:
    match = re.fullmatch(rf"{prefix}(\d{{1,9}})", folder.name)
    return int(match[1]) if match else None


def _tensor_folder(file: Path, given: Any) -> Path | None:
    """The folder with tensors, next to the file: dumps may be moved, and paths inside the file are not trusted."""
    beside = file.with_name("dump_tensor_data")
    return beside if isinstance(given, str) and given and beside.is_dir() else None


def _stacks(content: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Stacks by row. The new format groups rows by their stack, the old one lists each."""
    for key, entry in content.items():
        if not isinstance(entry, list):
            continue
        if len(entry) == 2 and all(isinstance(part, list) for part in entry):
            frames = tuple(frame for frame in entry[1] if isinstance(frame, str))
            yield from ((name, frames) for name in entry[0] if isinstance(name, str))
        else:
            yield key, tuple(frame for frame in entry if isinstance(frame, str))


def _call(name: str, row: Any, parent: Any, stack: tuple[str, ...], tensors: Path | None) -> Call | None:
    if not isinstance(row, dict):
        return None
    if match := _MODULE.fullmatch(name):
        return _module(name, match, row, stack, tensors)
    if not (match := _API.fullmatch(name)):
        return None
    backward = match["direction"] == "backward"
    if match["prefix"] == "Optimizer":
        outputs = _values(_by_name(row.get("names"), row.get("output")), tensors)
        settings = {**_values(row.get("input_kwargs"), tensors), **_group_settings(row.get("groups"))}
        return Call(name, "optimizer", match["op"], "", "optimizer", int(match["number"]), settings, outputs, stack)
    phase = match["direction"]
    if row.get("phase") in ("backward", "optimizer"):
        phase = row["phase"]
    path = ""
    if isinstance(parent, str) and (owner := _MODULE.fullmatch(parent)):
        path = _path(owner["path"])
    elif parent == "optimizer":
        phase = "optimizer"
    inputs = _values(row.get("input"), tensors) if backward else _arguments(row, tensors)
    outputs = _values(row.get("output"), tensors)
    op = (
        match["op"]
        if match["prefix"] in ("Aten", "NPU", "Distributed", "Torch")
        else f"{match['prefix']}.{match['op']}"
    )
    given = (row.get("input_args", []), row.get("input_kwargs", {}))
    return Call(name, "op", op, path, phase, int(match["number"]), inputs, outputs, stack, given)


def _module(name: str, match: re.Match[str], row: Any, stack: tuple[str, ...], tensors: Path | None) -> Call:
    direction, number, path = match["direction"], int(match["number"]), _path(match["path"])
    if direction == "parameters_grad":
        return Call(name, "gradients", match["kind"], path, "backward", number, {}, _values(row, tensors), stack)
    if direction == "backward":
        inputs = _values(row.get("input"), tensors)
    else:
        inputs = {**_arguments(row, tensors), **_prefixed("parameters", _values(row.get("parameters"), tensors))}
    return Call(
        name, "module", match["kind"], path, direction, number, inputs, _values(row.get("output"), tensors), stack
    )


def _path(written: str | None) -> str:
    """The path below the root. The index of a model in a list of models is not part of it."""
    return "" if written in (None, ROOT) else str(written)


def _arguments(row: Mapping[str, Any], tensors: Path | None) -> dict[str, Value]:
    return {**_values(row.get("input_args"), tensors), **_values(row.get("input_kwargs"), tensors)}


def _prefixed(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


def _by_name(names: Any, values: Any) -> Any:
    if isinstance(names, list) and isinstance(values, list) and len(names) == len(values):
        return dict(zip(map(str, names), values, strict=True))
    return values


def _group_settings(groups: Any) -> dict[str, Value]:
    """Settings that not all parameters of an optimizer share, such as `weight_decay of layers.0.norm.weight`."""
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return {}
    settings: dict[str, Value] = {}
    for group in groups:
        names = [name for name in group.get("names") or () if isinstance(name, str)]
        for setting, value in _values(group.get("settings"), None).items():
            settings.update({f"{setting} of {name}": value for name in names})
    return settings


def _values(nest: Any, tensors: Path | None) -> dict[str, Value]:
    """Tensors and scalars in nested lists and mappings, by their path."""
    return dict(_flatten(nest, "", tensors, 0))


def _flatten(nest: Any, place: str, tensors: Path | None, depth: int) -> Iterator[tuple[str, Value]]:
    if depth > 16:
        return
    if isinstance(nest, dict) and isinstance(nest.get("type"), str):
        if value := _value(nest, tensors):
            yield place, value
    elif isinstance(nest, dict | list):
        items = nest.items() if isinstance(nest, dict) else enumerate(nest)
        for key, item in items:
            yield from _flatten(item, f"{place}.{key}" if place else str(key), tensors, depth + 1)


def _value(entry: Mapping[str, Any], tensors: Path | None) -> Value | None:
    if "dtype" not in entry:
        scalar = entry.get("value")
        return Value(scalar=scalar) if isinstance(scalar, bool | int | float | str) else None
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        return None
    name = entry.get("data_name")
    file = tensors / Path(name).name if tensors and isinstance(name, str) and name not in ("", "-1") else None
    return Value(
        dtype=str(entry["dtype"]).removeprefix("torch."),
        shape=tuple(shape),
        minimum=_figure(entry.get("Min")),
        maximum=_figure(entry.get("Max")),
        mean=_figure(entry.get("Mean")),
        norm=_figure(entry.get("Norm")),
        nan=_count(entry.get("Nan")),
        inf=_count(entry.get("Inf")),
        hash=str(entry.get("Hash") or entry.get("md5") or ""),
        sketch=_sketch(entry.get("Sketch")),
        maker=str(entry.get("From") or ""),
        requires_grad=entry.get("requires_grad") if isinstance(entry.get("requires_grad"), bool) else None,
        file=file,
    )


def _sketch(packed: Any) -> tuple[float, ...]:
    """The numbers of a sketch, stored in single or double precision."""
    try:
        data = base64.b64decode(packed.removeprefix(":"), validate=True) if isinstance(packed, str) else b""
    except ValueError:
        return ()
    form = {4 * BUCKETS: f"<{BUCKETS}f", 8 * BUCKETS: f"<{BUCKETS}d"}.get(len(data))
    return struct.unpack(form, data) if form else ()


def _figure(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, bool | int | float) else None
    except OverflowError:
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
