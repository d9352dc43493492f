"""What error codes and well-known messages mean, why they come, and what to do: one data file a family.

A row's fields are those of `KnownError`. Codes and names are facts of CANN and torch_npu (their public headers and
documents, read 2026-11); every cause and remedy is npukit's own wording.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from npukit.facts.data import load_rows, load_yaml, make_row

FAMILIES = ("python", "torch_npu", "acl", "aclnn", "hccl", "cann")

# general: says less than what stands beside it; reading: only what the sentence itself says, where nobody knows more;
# aftermath: the same of a sentence that tells what followed (something was waited for in vain), or what to set;
# class: only what the class of an exception and the package that raised it say, where nothing else in a log says more;
# unknown: an exception of which nothing is known, where else only what reports it is recognised;
# hint: only a loose word of a sentence, or what the message says to do, where nothing else at all is recognised;
# consequence: mostly follows from another rank's error; wrapper: says only that something beneath failed;
# warning: the program goes on.
Kind = Literal[
    "cause", "general", "reading", "aftermath", "class", "unknown", "hint", "consequence", "wrapper", "warning"
]
# exact: the error itself is known, so its causes are stated; reading: its sentence says so much, and the words are
# named; nearest: a loose word or the class of an exception, only a lead in a list.
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
    """One error: the head of each data file says where its codes come from."""

    code: str  # as it is written in logs, or a short name of ours for a message without one
    meaning: str
    causes: tuple[str, ...]  # the likeliest first
    remedies: tuple[str, ...]  # what to do, in order
    example: str  # a line in which it shows
    name: str = ""  # what CANN calls it
    pattern: str = ""  # how to recognise a message without a code
    kind: Kind = "cause"

    @property
    def strength(self) -> Strength:
        """How far it may be believed.

        >>> known_errors()["507015"].strength
        'exact'
        """
        return STRENGTHS.get(self.kind, "exact")


@dataclass(frozen=True)
class NamedError:
    """What it means that something with one of these names is missing, or that a sentence has one of these phrases."""

    names: tuple[str, ...]
    error: KnownError
    beside: str = ""  # a pattern that must be in the sentence, too, or in the text around a name


@functools.cache
def known_errors() -> dict[str, KnownError]:
    """Every known error by its code.

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
    """The rows about one kind of thing, in the order in which they are tried.

    >>> named_errors("library")[0].names
    ('libhccl.so*',)
    """
    return _named()[subject]


def _named_rows() -> Iterator[dict[str, Any]]:
    """The rows of named.yaml, of raised.yaml and of sentences.yaml: what is particular first."""
    yield from load_yaml("errors/named.yaml")
    yield from load_yaml("errors/raised.yaml")
    yield from load_yaml("errors/sentences.yaml")["rows"]


@functools.cache
def _named() -> dict[str, tuple[NamedError, ...]]:
    by_subject: dict[str, list[NamedError]] = {}
    leads: dict[str, list[NamedError]] = {}  # tried where no row fits
    for row in _named_rows():
        fields = {name: value for name, value in row.items() if name not in ("subject", "names", "loose", "beside")}
        error, beside = make_row(KnownError, fields), row.get("beside", "")
        by_subject.setdefault(row["subject"], []).append(NamedError(tuple(row["names"]), error, beside))
        if loose := tuple(row.get("loose", ())):
            leads.setdefault(row["subject"], []).append(NamedError(loose, replace(error, kind="hint"), beside))
    return {subject: (*rows, *leads.get(subject, ())) for subject, rows in by_subject.items()}


@functools.cache
def frameworks() -> frozenset[str]:
    """The folders of frameworks that are often run from their sources.

    >>> "vllm_ascend" in frameworks()
    True
    """
    return frozenset(load_yaml("errors/sentences.yaml")["frameworks"])


@functools.cache
def cann_titles() -> dict[str, str]:
    """What CANN calls the kind of each of its codes.

    >>> cann_titles()["EZ0007"]
    'Not_Supported_Data_Type'
    """
    lines = Path(__file__).with_name("cann_titles.csv").read_text(encoding="utf-8").splitlines()
    return {code: title for code, _, title in (line.partition(",") for line in lines[2:])}


@functools.cache
def code_kinds(family: str) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """What the parts of a family's codes mean, and its kinds of errors with what to do: kinds.yaml.

    >>> code_kinds("cann")[0]["EI"]
    'HCCL'
    """
    tables = load_yaml("errors/kinds.yaml")[family]
    return tables["parts"], {kind: tuple(texts) for kind, texts in tables["kinds"].items()}
