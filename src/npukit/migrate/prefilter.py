"""Find out from a file's words which rules may find something in it. Parsing a file takes a hundred times as long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from npukit.facts.target import Target
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules
from npukit.source.cache import per_project
from npukit.source.find import kind_of

_IMPORT = re.compile(rb"import[ \t]+([\w., \t]+)", re.ASCII)
_FROM = re.compile(rb"from[ \t]+([\w.]+)", re.ASCII)
_IN_WORD = re.compile(rb"\w")
_PART = re.compile(rb"(\W?)(\w+)(?=(\W?))", re.ASCII)
_TO_WORDS = bytes(code if bytes([code]).isalnum() or code == ord("_") else ord(" ") for code in range(256))
_PIECE = 8 << 20


class _Wanted(NamedTuple):
    """A rule and what a file must contain for it: one of `words`, one of `needs`, and one of the names among
    its calls.
    """

    rule: Rule
    words: frozenset[bytes]
    needs: frozenset[bytes]
    calls: Mapping[bytes, frozenset[bytes]]  # a called name, with words of which the file needs one


class _Prepared(NamedTuple):
    rules: tuple[_Wanted, ...]
    words: tuple[tuple[bytes, tuple[bytes, ...]], ...]  # a word, with the parts that must occur for it to occur


def kinds_of(path: Path) -> tuple[str, ...]:
    """The kinds of a file, as rules name them."""
    kind = kind_of(path) or ""
    return (kind, "setup") if path.name == "setup.py" else (kind,)


def active_rules(path: Path, data: bytes, codes: tuple[str, ...], target: Target, root: Path | None) -> list[Rule]:
    """Return the rules that may find something in a file.

    >>> active_rules(Path("a.py"), b"import torch\ntorch.load(name)", ("NPK110", "NPK713"), target, None)[0].code
    'NPK713'
    """
    kinds = kinds_of(path)
    prepared = _prepared(codes, kinds, target)
    tokens: set[bytes] = set()
    text = data
    if kinds == ("python",):
        tokens = set(data.translate(_TO_WORDS).split())
        text = b" ".join((b"", *tokens, b""))
    words = _present(prepared, text.lower())
    modules = _imported(data) - _own_modules(root)
    return [
        rule
        for rule, looked_for, needs, calls in prepared.rules
        if (rule.modules & modules or not words.isdisjoint(looked_for))
        and (not needs or not words.isdisjoint(needs))
        and (
            not calls
            or not tokens
            or any(_beside(calls[name], tokens) and _may_call(name, data) for name in calls.keys() & tokens)
        )
    ]


def may_skip(path: Path, codes: tuple[str, ...], target: Target) -> bool:
    """Return whether a large file, read in pieces, has no word that a rule looks for."""
    prepared = _prepared(codes, kinds_of(path), target)
    overlap = max((len(word) for word, _ in prepared.words), default=1)
    with path.open("rb") as file:
        end = b""
        while piece := file.read(_PIECE):
            if b"\0" in piece or _present(prepared, (end + piece).lower()):
                return False
            end = piece[-overlap:]
    return True


def _may_call(name: bytes, data: bytes) -> bool:
    return any(
        not match.start() or not _IN_WORD.match(data, match.start() - 1) for match in _calling(name).finditer(data)
    )


@lru_cache(maxsize=1024)
def _calling(name: bytes) -> re.Pattern[bytes]:
    """Return a pattern for a name that is called or renamed: `import load as read`, `read = torch.load`.

    It also matches the end of a longer name, since a search that starts with letters is much faster.
    """
    return re.compile(rb"%s(?:\s*\(|\s+as\b|\s*[;#\\]|[ \t\r]*$)" % name, re.MULTILINE)


def _beside(more: frozenset[bytes], tokens: set[bytes]) -> bool:
    return not more or not more.isdisjoint(tokens)


@lru_cache(maxsize=64)
def _prepared(codes: tuple[str, ...], kinds: tuple[str, ...], target: Target) -> _Prepared:
    """Return the rules for these kinds of files, and the words that they look for."""
    python = kinds[0] in ("python", "notebook")
    rules = []
    for rule in (rule for rule in all_rules() if rule.code in codes):
        as_text = any(kind in kinds for kind, _ in rule.text_checks)
        if as_text or (python and (rule.checks or rule.call_checks)):
            words = (*rule.words, *(rule.text_words if as_text else ()))
            words = words if kinds == ("python",) else tuple(word.strip(" ") for word in words)
            only_calls = not (as_text or rule.checks or rule.modules)
            calls = _calls(rule, target) if only_calls else {}
            rules.append(_Wanted(rule, _lowered(words), _lowered(rule.needs) if python else frozenset(), calls))
    wanted = sorted({word for wanted_rule in rules for word in (*wanted_rule.words, *wanted_rule.needs)}, key=len)
    if kinds == ("python",):  # a word is searched for in parts: "torch.load" as torch and load
        return _Prepared(tuple(rules), tuple((word, _parts(word)) for word in wanted))
    inside = ((word, [other for other in wanted if other != word and other in word]) for word in wanted)
    return _Prepared(tuple(rules), tuple((word, (*shorter, word)) for word, shorter in inside))


def _parts(word: bytes) -> tuple[bytes, ...]:
    """
    >>> _parts(b".item("), _parts(b"torch.load")
    ((b' item ',), (b'torch ', b' load'))
    """
    return tuple(b" " * len(before) + part + b" " * len(after) for before, part, after in _PART.findall(word))


def _calls(rule: Rule, target: Target) -> Mapping[bytes, frozenset[bytes]]:
    """Return the names whose calls a rule wants to see."""
    calls = {}
    for names, _ in rule.call_checks:
        for name, more in (names(target) if callable(names) else dict.fromkeys(names, ())).items():
            calls[name.encode()] = frozenset(word.encode() for word in more)
    return calls


def _present(prepared: _Prepared, text: bytes) -> set[bytes]:
    """Return the words that occur in a text, searching for each part once."""
    present: set[bytes] = set()
    seen: dict[bytes, bool] = {}
    for word, parts in prepared.words:
        for part in parts:
            if part not in seen:
                seen[part] = part in text
            if not seen[part]:
                break
        else:
            present.add(word)
    return present


def _lowered(words: tuple[str, ...]) -> frozenset[bytes]:
    return frozenset(word.lower().encode() for word in words)


def _imported(data: bytes) -> frozenset[str]:
    """Return the top-level modules that a file may import, without parsing it."""
    plain = (words[0] for names in _IMPORT.findall(data) for name in names.split(b",") if (words := name.split()))
    return frozenset(name.partition(b".")[0].decode() for name in (*plain, *_FROM.findall(data)))


@per_project(maxsize=8)
def _own_modules(root: Path | None) -> frozenset[str]:
    """Return a project's own top-level modules. In Megatron-LM, `megatron` is not a library."""
    paths = root.iterdir() if root else ()
    return frozenset(path.stem for path in paths if path.suffix == ".py" or path.is_dir())
