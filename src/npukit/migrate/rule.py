"""A rule: which nodes or files it looks at, the findings it makes, and its policy.

The modules in `rules` import everything that rules consist of from here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import NamedTuple, TypeVar

from npukit.facts.data import load_rows
from npukit.facts.target import Target
from npukit.migrate.goal import Goal
from npukit.report import Finding, Severity
from npukit.source import Document, Edit, Place, PythonFile

__all__ = ["Document", "Edit", "Effort", "Finding", "Findings", "Goal", "Place", "PythonFile", "Rule", "Severity"]
__all__ += ["Where", "described", "described_rules"]

Findings = Iterator[Finding]
Where = tuple[PythonFile, ast.AST] | tuple[Document, tuple[int, int]] | Place
Check = Callable[..., Iterable[Finding]]
Called = Callable[[Target], Mapping[str, frozenset[str]]]  # names, each with words of which the file needs one as well
_C = TypeVar("_C", bound=Check)


class Effort(NamedTuple):
    """Estimated minutes of manual work for the first place and for each further one. Only the order of magnitude
    counts.
    """

    first: int = 0
    further: int = 0


_NONE = Effort()


@dataclass(eq=False)
class Rule:
    """One rule. A rule that rewrites is a file of migrate/rules, whose docstring explains it and shows code before and
    after. A rule that only finds something is a row of facts/rules.yaml, and its checks are in such a file.

    >>> rule = Rule("NPK110", "move-to-device", words=("cuda",), why="...", remedy="...", fixes=True)
    >>> @rule.on(ast.Call)
    ... def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]: ...
    """

    code: str
    name: str
    why: str  # for findings that give no reason of their own
    remedy: str  # likewise
    words: tuple[str, ...] = ()  # a file without any of these is never parsed for it: "cuda", ".item(", " optim "
    severity: Severity = Severity.error
    needs: tuple[str, ...] = ()  # a Python file must also contain one of these words
    modules: frozenset[str] = frozenset()  # files that import one of these are parsed as well
    text_words: tuple[str, ...] = ()  # further words for the files of `on_text`
    fixes: bool = False  # whether its findings may carry edits
    distributes: bool = False  # whether only `migrate --distributed` applies it, after the other rules
    effort: Effort = _NONE
    supersedes: tuple[str, ...] = ()  # codes whose findings without edits on the same line are dropped
    since: str = ""  # the first torch that it applies to; "" for all
    checks: list[tuple[type[ast.AST], frozenset[str], Check]] = field(default_factory=list)
    call_checks: list[tuple[frozenset[str] | Called, Check]] = field(default_factory=list)
    text_checks: list[tuple[str, Check]] = field(default_factory=list)
    doc: str = ""

    def __post_init__(self) -> None:
        self.severity, self.effort = Severity(self.severity), Effort(*self.effort)

    def on(self, *types: type[ast.AST], says: Iterable[str] = ()) -> Callable[[_C], _C]:
        """Call the function with every node of these types, as (node, PythonFile, Goal). An ast.Module occurs once per
        file.

        With `says`, only names, attributes and keywords that equal one of these words, and strings that contain one,
        are passed. Most nodes are nothing that a rule looks for.
        """

        def register(check: _C) -> _C:
            self.checks += [(node_type, frozenset(says), check) for node_type in types]
            return check

        return register

    def on_call(self, names: Iterable[str] | Called) -> Callable[[_C], _C]:
        """Call the function with every call of what has one of these last names, where it may be torch's.

        A name stands for itself, and for what the file imports or assigns as it: `load` is called by `torch.load(...)`
        and, after `from torch import load as read`, by `read(...)`. Most calls are of nothing that a rule looks for.
        """

        def register(check: _C) -> _C:
            self.call_checks.append((names if callable(names) else frozenset(names), check))
            return check

        return register

    def on_function(self, *names: str) -> Callable[[_C], _C]:
        """Call the function with every call of one of these functions, given by full name: "torch.load"."""

        def register(check: _C) -> _C:
            @wraps(check)
            def of_these(call: ast.Call, file: PythonFile, goal: object) -> Iterable[Finding]:
                return check(call, file, goal) if file.resolve(call.func) in names else ()

            self.on_call(name.rpartition(".")[2] for name in names)(of_these)
            return check

        return register

    def on_text(self, *kinds: str) -> Callable[[_C], _C]:
        """Call the function with every file of these kinds, as (Document, Goal).

        The kinds are those of source.find.kind_of, and "setup" for setup.py.
        """

        def register(check: _C) -> _C:
            self.text_checks += [(kind, check) for kind in kinds]
            return check

        return register

    def finding(
        self,
        where: Where,
        what: str,
        why: str = "",
        remedy: str = "",
        edits: Sequence[Edit] = (),
        severity: Severity | None = None,
        evidence: str = "",
        subject: str = "",
    ) -> Finding:
        """Make a finding of this rule. `where` is (file, node), or (document, span) for files that are not Python.

        Unless given, its evidence is the line of the node, or the text of the span.
        """
        if isinstance(where, Place):
            place = where
        elif isinstance(where[0], PythonFile):
            file, node = where[0], where[1]
            place, evidence = file.place(node), evidence or file.line_of(node).strip()
        else:
            document, (start, end) = where
            place, evidence = _place_in(document, start, end), evidence or document.text[start:end]
        return Finding(
            self.code,
            severity or self.severity,
            what,
            why or self.why,
            remedy or self.remedy,
            place,
            evidence,
            tuple(edits),
            subject,
        )


@cache
def described_rules() -> dict[str, Rule]:
    """Return the rules in facts/rules.yaml, by code."""
    return {rule.code: rule for rule in load_rows("rules.yaml", Rule)}


def described(code: str) -> Rule:
    """Return a rule of facts/rules.yaml, which a module of `rules` gives its checks.

    >>> described("NPK712").name
    'data-parallel'
    """
    return described_rules()[code]


def _place_in(document: Document, start: int, end: int) -> Place:
    """Return the place of a range in a text file."""
    before = document.text[:start]
    line = before.count("\n") + 1
    column = start - (before.rfind("\n") + 1) + 1
    return Place(document.path, line, column, line, column + end - start)
