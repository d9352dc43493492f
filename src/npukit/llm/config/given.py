"""What somebody wrote: values with the place where each was written, from a YAML file or from the command line."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from npukit.errors import NpukitError

Keys = tuple[str | int, ...]  # ("data", "train", 0, "path")


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, where, and what to do about it."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"

    @property
    def line(self) -> int:
        """Its line; what is not in a file comes first."""
        number = self.place.rpartition(":")[2]
        return int(number) if number.isdigit() else 0


class Mistakes(NpukitError):
    """All that is wrong with a configuration, at once."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = sorted(dict.fromkeys(mistakes), key=lambda each: each.line)
        lines = [str(each) for each in self.mistakes]
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} mistakes:", *lines]))


OPTION = re.compile(r"\b(?:model|tuning|data|training)\.\w+")
DEFAULT = "'s default"  # how the place of another tool's default ends


@dataclass
class Given:
    """A tree of values, where each was written, and by which name if that is not its key."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Keys, str] = field(default_factory=dict)
    names: dict[Keys, str] = field(default_factory=dict)
    source: str = "command line"
    theirs: dict[str, str] = field(default_factory=dict)  # another tool's name of an option, where it was used

    def has(self, keys: Keys) -> bool:
        """Whether somebody wrote it."""
        return keys in self.places and not self.places[keys].endswith(DEFAULT)

    def set(self, keys: Keys, value: Any, place: str, name: str = "") -> None:
        """Write `value` at `keys`, whatever was there or above it."""
        node = self.values
        for key in keys[:-1]:
            if not isinstance(node.get(str(key)), dict):
                node[str(key)] = {}
            node = node[str(key)]
        node[str(keys[-1])] = value
        self.places[keys] = place
        self.names[keys] = name or ".".join(map(str, keys))

    def rename(self, old: Keys, new: Keys) -> None:
        """Move a value, with its place and the name that the user gave it."""
        node: Any = self.values
        for key in old[:-1]:
            node = node[key]
        names = {keys: self.name(keys) for keys in [*self.places, old] if keys[: len(old)] == old}
        node[str(new[-1])] = node.pop(old[-1])
        for keys, name in names.items():
            moved = (*new, *keys[len(old) :])
            self.places[moved], self.names[moved] = self.place(keys), name

    def set_default(self, keys: Keys, value: Any, place: str) -> None:
        """The same, unless something is there already."""
        node: Any = self.values
        for key in keys:
            if not isinstance(node, dict):
                return
            node = node.get(key, {})
        if node == {}:
            self.set(keys, value, place)

    def place(self, keys: Keys) -> str:
        """Where `keys`, or the nearest thing around it, was written."""
        return next((self.places[each] for each in _outwards(keys) if each in self.places), self.source)

    def name(self, keys: Keys) -> str:
        """What the user calls it."""
        return next((self.names[each] for each in _outwards(keys) if each in self.names), _dotted(keys))

    def mistake(self, keys: Keys, text: str) -> Mistake:
        """`text` is about `keys`; it names options as the user does."""
        return Mistake(self.place(keys), OPTION.sub(lambda name: self.theirs.get(name[0], name[0]), text))


def _outwards(keys: Keys) -> list[Keys]:
    return [keys[:length] for length in range(len(keys), 0, -1)]


def _dotted(keys: Keys) -> str:
    """
    >>> _dotted(("data", "train", 0, "path"))
    'data.train[0].path'
    """
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-4 is a number, as in YAML 1.2."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(path: Path) -> Given:
    """The mapping in a YAML (or JSON) file; what is wrong with the file itself is raised with its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NpukitError(f"There is no file {path}{nearest_file(path) or '.'}") from None
    except IsADirectoryError:
        raise NpukitError(f"{path} is a folder: name the YAML file with the configuration.") from None
    except UnicodeDecodeError as error:
        raise NpukitError(f"{path} is not text in UTF-8 (byte {error.start}): save it as UTF-8.") from None
    loader = _Loader(text.replace("\t", " ") if path.suffix == ".json" else text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise NpukitError(f"{path} is empty: see `npukit train --explain` for what can be written.")
        if not isinstance(node, yaml.MappingNode):
            found = "a list" if isinstance(node, yaml.SequenceNode) else f"only {_short(node.value)}"
            raise Mistakes([Mistake(f"{path}:1", f"the file must hold `key: value` lines, and holds {found}.")])
        given = Given(source=str(path))
        wrong: list[Mistake] = []
        given.values = _mapping(node, loader, (), given, wrong)
    except yaml.MarkedYAMLError as error:
        raise Mistakes([_syntax(path, text, error)]) from None
    except yaml.reader.ReaderError as error:
        raise NpukitError(f"{path}: {error.reason} ({error.character!r} at {error.position}).") from None
    finally:
        loader.dispose()
    if wrong:
        raise Mistakes(wrong)
    return given


def _mapping(
    node: yaml.MappingNode, loader: _Loader, above: Keys, given: Given, wrong: list[Mistake]
) -> dict[str, Any]:
    first: dict[Hashable, int] = {}
    for key, _ in node.value:
        name, line = getattr(key, "value", None), key.start_mark.line + 1
        if not isinstance(name, str):
            wrong.append(Mistake(f"{given.source}:{line}", "a key must be a word, not a list or a mapping."))
            return {}
        if first.setdefault(name, line) != line:
            where = f"{given.source}:{line}"
            wrong.append(Mistake(where, f"{name} was already given in line {first[name]}: remove one of them."))
    loader.flatten_mapping(node)
    result = {}
    for key, value in node.value:
        keys = (*above, key.value)
        given.places[keys] = f"{given.source}:{key.start_mark.line + 1}"
        result[key.value] = _value(value, loader, keys, given, wrong)
    return result


def _value(node: yaml.Node, loader: _Loader, keys: Keys, given: Given, wrong: list[Mistake]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, loader, keys, given, wrong)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            given.places[(*keys, index)] = f"{given.source}:{item.start_mark.line + 1}"
        return [_value(item, loader, (*keys, index), given, wrong) for index, item in enumerate(node.value)]
    return _plain(loader.construct_object(node), node.value)


def _plain(value: Any, text: str) -> Any:
    """A date is what somebody called something; nothing here takes one."""
    return value if value is None or isinstance(value, bool | int | float | str) else text


def _syntax(path: Path, text: str, error: yaml.MarkedYAMLError) -> Mistake:
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark else 1
    lines = text.splitlines()
    line = lines[number - 1] if number <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "\\t" in str(error.problem):
        return Mistake(f"{path}:{number}", "a tab stands at the start of the line: YAML wants spaces there.")
    # The parser stumbles over the line after the one without a colon.
    for at in (number, *range(number - 1, 0, -1)):
        words = lines[at - 1].strip() if at <= len(lines) else ""
        if words and not words.startswith(("#", "-")) and ":" not in words and not re.search(r"[\[\]{}]", words):
            return Mistake(f"{path}:{at}", f"there is no colon in {_short(words)}: write key: value.")
        if words and at < number:
            break
    return Mistake(f"{path}:{number}", f"this is not YAML: {error.problem} in {_short(line.strip())}.")


def _short(text: object) -> str:
    words = str(text)
    return repr(words if len(words) <= 60 else words[:57] + "...")


def nearest_file(path: Path) -> str:
    """ ", did you mean X?" where a file with nearly that name lies beside it; else nothing."""
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, beside, cutoff=0.7)
    return f": did you mean {path.parent / near}?" if near else ""


def nearest(word: str, words: Sequence[str] | Mapping[str, Any], cutoff: float = 0.6) -> str | None:
    """The one of `words` that was probably meant."""
    import difflib

    lower = {each.lower(): each for each in words}
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return lower[found[0]] if found else None


ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")


def parse_words(words: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """What the command line says, by key: the value, and how it was written.

    >>> parse_words(["--lora_rank", "8", "training.epochs=2", "--dataset", "a.json", "b.json", "--packing"])
    {'lora_rank': (8, '--lora_rank'), 'training.epochs': (2, 'training.epochs'),
     'dataset': (['a.json', 'b.json'], '--dataset'), 'packing': (True, '--packing')}
    """
    found: dict[str, tuple[Any, str]] = {}
    wrong: list[Mistake] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            while not equals and remaining and not _starts_option(remaining[0], after=values):
                values.append(remaining.pop(0))
            parsed = [_scalar(each) for each in values]
            found[name.replace("-", "_")] = (parsed[0] if len(parsed) == 1 else parsed or True, f"--{name}")
        elif ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            found[name] = (_scalar(value), name)
        else:
            wrong.append(Mistake("command line", f"{_short(word)} is neither --key value nor key=value."))
    if wrong:
        raise Mistakes(wrong)
    return found


def _starts_option(word: str, after: list[str]) -> bool:
    return word.startswith("--") or bool(after and ASSIGNMENT.match(word))


def _scalar(text: str) -> Any:
    """A value of the command line: read as YAML would read it, but text that only looks like YAML stays text."""
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        return text
    if isinstance(value, dict | list):
        return value if text.lstrip().startswith(("{", "[")) else text  # a system message may be "a: b"
    if value is None:
        return None if text in ("null", "~", "None") else text
    return text if isinstance(value, str) else _plain(value, text)
