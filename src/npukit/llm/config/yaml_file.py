"""Reads YAML and JSON files with the line of every key."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest_file
from npukit.llm.config.raw_config import Keys, Mistake, Mistakes, Origin, RawConfig


class Loader(yaml.SafeLoader):
    """A YAML loader for which 1e-4 is a number, as in YAML 1.2."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(path: Path) -> RawConfig:
    """Return the mapping in a YAML or JSON file. Raise an error with the line if the file is invalid."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = nearest_file(path)
        if not near and path.suffix not in (".yaml", ".yml", ".json"):  # it may be the name of a model
            raise NpukitError(f"There is no file {path}: name a YAML file, such as `npukit init` writes.") from None
        raise NpukitError(f"There is no file {path}{near or '.'}") from None
    except IsADirectoryError:
        raise NpukitError(f"{path} is a folder: name the YAML file with the configuration.") from None
    except UnicodeDecodeError as error:
        raise NpukitError(f"{path} is not text in UTF-8 (byte {error.start}): save it as UTF-8.") from None
    try:
        loader = Loader(text.replace("\t", " ") if path.suffix == ".json" else text)
    except yaml.reader.ReaderError as error:
        raise NpukitError(f"{path}: {error.reason} ({error.character!r} at {error.position}).") from None
    try:
        node = loader.get_single_node()
        if node is None:
            raise NpukitError(f"{path} is empty: `npukit train --explain` lists the options.")
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else f"only {short(node.value)}"
            raise Mistakes([Mistake(Origin(str(path), 1), f"the file must contain `key: value` lines, not {kind}.")])
        raw = RawConfig(source=str(path))
        wrong: list[Mistake] = []
        raw.values = _mapping(node, loader, (), raw, wrong)
    except yaml.MarkedYAMLError as error:
        raise Mistakes([_syntax(path, text, error)]) from None
    finally:
        loader.dispose()
    if wrong:
        raise Mistakes(wrong)
    return raw


def _mapping(
    node: yaml.MappingNode, loader: Loader, above: Keys, raw: RawConfig, wrong: list[Mistake]
) -> dict[str, Any]:
    first: dict[Hashable, int] = {}
    for key, _ in node.value:
        name, line = getattr(key, "value", None), key.start_mark.line + 1
        if not isinstance(name, str):
            wrong.append(Mistake(Origin(raw.source, line), "a key must be a word, not a list or a mapping."))
            return {}
        if first.setdefault(name, line) != line:
            where = Origin(raw.source, line)
            wrong.append(Mistake(where, f"{name} was already given in line {first[name]}: remove one of them."))
    loader.flatten_mapping(node)
    result = {}
    for key, value in node.value:
        keys = (*above, key.value)
        raw.places[keys] = Origin(raw.source, key.start_mark.line + 1)
        result[key.value] = _value(value, loader, keys, raw, wrong)
    return result


def _value(node: yaml.Node, loader: Loader, keys: Keys, raw: RawConfig, wrong: list[Mistake]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, loader, keys, raw, wrong)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            raw.places[(*keys, index)] = Origin(raw.source, item.start_mark.line + 1)
        return [_value(item, loader, (*keys, index), raw, wrong) for index, item in enumerate(node.value)]
    return plain(loader.construct_object(node), node.value)


def plain(value: Any, text: str) -> Any:
    """Turn dates back into text, since no option is a date."""
    return value if value is None or isinstance(value, bool | int | float | str) else text


def _syntax(path: Path, text: str, error: yaml.MarkedYAMLError) -> Mistake:
    mark = error.problem_mark or error.context_mark
    if error.context_mark and mark and mark.index >= len(text.rstrip()):
        written = text.rstrip().splitlines()
        opened = min(error.context_mark.line, len(written) - 1)
        return Mistake(
            Origin(str(path), opened + 1),
            f"the file ends before what begins in {short(written[opened].strip())} does: close the bracket or the "
            "quotation mark.",
        )
    number = mark.line + 1 if mark else 1
    lines = text.splitlines()
    line = lines[number - 1] if number <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return Mistake(Origin(str(path), number), "the line is indented with a tab: YAML needs spaces.")
    # The parser reports the line after the one without a colon.
    for at in (number, *range(number - 1, 0, -1)):
        words = lines[at - 1].strip() if at <= len(lines) else ""
        if words and not words.startswith(("#", "-")) and ":" not in words and not re.search(r"[\[\]{}]", words):
            return Mistake(Origin(str(path), at), f"there is no colon in {short(words)}: write key: value.")
        if re.match(r"[\w.]+:[^\s/\\]", words):
            return Mistake(
                Origin(str(path), at), f"there is no space after the colon in {short(words)}: write key: value."
            )
        if words and at < number:
            break
    return Mistake(Origin(str(path), number), f"this is not YAML: {error.problem} in {short(line.strip())}.")


def short(text: object) -> str:
    """Return a value as text, shortened for a message."""
    words = str(text)
    return repr(words if len(words) <= 60 else words[:57] + "...")
