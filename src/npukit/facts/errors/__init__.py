"""What error codes and well-known messages mean, what causes them and what to do: one data file per family.

A row has the fields of `KnownError`. Codes and names are facts of CANN and torch_npu (from their public headers and
documents, read 2026-11); the wording of every cause and remedy is npukit's own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from npukit.facts.data import load_rows, load_yaml, make_row

FAMILIES = ("python", "torch_npu", "acl", "aclnn", "hccl", "cann")

# general: less specific than other explanations of the same line; reading: only what the sentence itself says;
# aftermath: like a reading, of a sentence that reports a consequence (a wait in vain) or what to set;
# class: based only on an exception's class and the package that raised it, used if nothing else in a log fits;
# unknown: an exception about which nothing is known, used if otherwise only a report of it would be recognised;
# hint: based on a single word, or on the message's own advice, used if nothing else at all is recognised;
# consequence: usually caused by another rank's error; wrapper: only says that something below it failed;
# warning: the program continues.
Kind = Literal[
    "cause", "general", "reading", "aftermath", "class", "unknown", "hint", "consequence", "wrapper", "warning"
]
# exact: the error itself is known, so its causes are stated; reading: inferred from the words of its sentence,
# which are quoted; nearest: based on a single word or an exception's class, only a lead in a list.
Strength = Literal["exact", "reading", "nearest"]
STRENGTHS: dict[Kind, Strength] = {
    "reading": "reading",
    "aftermath": "reading",
    "class": "nearest",
    "unknown": "nearest",
    "hint": "nearest",
}


@dataclass(frozen=True)
class KnownError:
    """One error. The head of each data file says where its codes come from."""

    code: str  # as it appears in logs, or a short name of ours for a message without a code
    meaning: str
    causes: tuple[str, ...]  # the most likely first
    remedies: tuple[str, ...]  # what to do, in order
    example: str  # an example line
    name: str = ""  # CANN's name for it
    pattern: str = ""  # patterns that recognise a message without a code
    kind: Kind = "cause"

    @property
    def strength(self) -> Strength:
        """How reliable an explanation by this row is.

        >>> known_errors()["507015"].strength
        'exact'
        """
        return STRENGTHS.get(self.kind, "exact")


@dataclass(frozen=True)
class NamedError:
    """The meaning of a missing item with one of these names, or of a sentence with one of these phrases."""

    names: tuple[str, ...]
    error: KnownError
    beside: str = ""  # a pattern that must also match the sentence, or the text around a name


@functools.cache
def known_errors() -> dict[str, KnownError]:
    """All known errors by code.

    >>> known_errors()["507015"].name
    'ACL_ERROR_RT_AICORE_EXCEPTION'
    """
    return {error.code: error for family in FAMILIES for error in errors_of(family)}


@functools.cache
def errors_of(family: str) -> tuple[KnownError, ...]:
    """The known errors of one family, in the order of its file.

    >>> errors_of("acl")[0].code
    '100000'
    """
    return tuple(load_rows(f"errors/{family}.yaml", KnownError))


def named_errors(subject: str) -> tuple[NamedError, ...]:
    """The rows about one kind of item, in the order in which they are tried.

    >>> named_errors("library")[0].names
    ('libhccl.so*',)
    """
    return _named()[subject]


def _named_rows() -> Iterator[dict[str, Any]]:
    """The rows of named.yaml, raised.yaml and sentences.yaml, the most specific first."""
    yield from load_yaml("errors/named.yaml")
    yield from load_yaml("errors/raised.yaml")
    yield from load_yaml("errors/sentences.yaml")["rows"]


@functools.cache
def _named() -> dict[str, tuple[NamedError, ...]]:
    by_subject: dict[str, list[NamedError]] = {}
    leads: dict[str, list[NamedError]] = {}  # tried if no other row matches
    for row in _named_rows():
        fields = {name: value for name, value in row.items() if name not in ("subject", "names", "loose", "beside")}
        error, beside = make_row(KnownError, fields), row.get("beside", "")
        by_subject.setdefault(row["subject"], []).append(NamedError(tuple(row["names"]), error, beside))
        if loose := tuple(row.get("loose", ())):
            leads.setdefault(row["subject"], []).append(NamedError(loose, replace(error, kind="hint"), beside))
    return {subject: (*rows, *leads.get(subject, ())) for subject, rows in by_subject.items()}


@functools.cache
def frameworks() -> frozenset[str]:
    """The folders of frameworks that are often run from their source trees.

    >>> "vllm_ascend" in frameworks()
    True
    """
    return frozenset(load_yaml("errors/sentences.yaml")["frameworks"])


@functools.cache
def cann_titles() -> dict[str, str]:
    """CANN's name for the category of each of its codes.

    >>> cann_titles()["EZ0007"]
    'Not_Supported_Data_Type'
    """
    lines = Path(__file__).with_name("cann_titles.csv").read_text(encoding="utf-8").splitlines()
    return {code: title for code, _, title in (line.partition(",") for line in lines[2:])}


@functools.cache
def code_kinds(family: str) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """The meaning of the parts of a family's codes, and its categories with advice, from kinds.yaml.

    >>> code_kinds("cann")[0]["EI"]
    'HCCL'
    """
    tables = load_yaml("errors/kinds.yaml")[family]
    return tables["parts"], {kind: tuple(texts) for kind, texts in tables["kinds"].items()}
