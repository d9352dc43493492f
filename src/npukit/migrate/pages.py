"""A page of docs/reference/rules for each rule, made from the rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules, rule_of

_GROUPS = {
    "NPK0": "Files that could not be checked",
    "NPK1": "Migration: what `npukit migrate` rewrites",
    "NPK2": "CUDA features without a counterpart, or with a different one",
    "NPK3": "Supported functions and data types",
    "NPK4": "Third-party libraries",
    "NPK5": "Dynamic shapes",
    "NPK6": "Fused operators",
    "NPK7": "Pitfalls in training code",
}
_AS_WRITTEN = "<!-- fmt: off -->"  # to formatters: examples of bad code stay as they are


def rule_page(code: str) -> str | None:
    """What there is to say about a rule, as Markdown; None where there is no such rule.

    >>> rule_page("NPK110").splitlines()[0]
    '# NPK110: move-to-device'
    """
    rule = rule_of(code)
    return page(rule) if rule else None


def pages() -> dict[str, str]:
    """Every page by its file name."""
    found = {f"{rule.code}.md": page(rule).replace("\n\n", f"\n\n{_AS_WRITTEN}\n\n", 1) for rule in all_rules()}
    return found | {"README.md": "\n".join(_index()) + "\n"}


def page(rule: Rule) -> str:
    """A rule's page: its docstring and its policy."""
    return "\n".join([f"# {rule.code}: {rule.name}", "", _facts(rule), "", *_body(rule.doc), "", *_policy(rule)]) + "\n"


def _facts(rule: Rule) -> str:
    facts = [f"severity: {rule.severity.value}"]
    if rule.fixes:
        facts.append(f"fixed by `npukit migrate{' --distributed' * rule.distributes}`")
    if rule.since:
        facts.append(f"since torch {rule.since}")
    return " · ".join(facts)


def _policy(rule: Rule) -> Iterator[str]:
    yield f"**Why:** {rule.why}"
    yield f"\n**What to do:** {rule.remedy}"
    if rule.effort.first:
        first, further = rule.effort
        yield f"\n**Estimated effort:** {_time(first)} for the first place, {_time(further)} for each other one."
    if rule.supersedes:
        yield f"\n**Replaces on the same line:** {', '.join(rule.supersedes)}."


def _time(minutes: int) -> str:
    return f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} hours"


def _body(doc: str) -> Iterator[str]:
    """The docstring with its examples as code blocks."""

    def kind(line: str) -> str:
        if re.match(r"(bad|good)\b.*:$", line):
            return "heading"
        if line.startswith("    ") or re.match(r"(before|after|finds)\b[^:]*:", line):
            return "code"
        return "text"

    language = "python"
    for what, block in groupby(doc.splitlines(), key=kind):
        if what == "heading":
            heading = next(block)
            language = "text" if "(" in heading and "card" not in heading else "python"
            yield f"**{heading.rstrip(':')}**\n"
        elif what == "code":
            yield from (f"```{language}", *(re.sub("^    ", "", line) for line in block), "```")
        else:
            yield from block


def _index() -> Iterator[str]:
    yield "# Rules of analyze and migrate"
    yield "\n`npukit explain NPK110` prints one page."
    for prefix, rules in groupby(all_rules(), key=lambda rule: rule.code[:4]):
        yield f"\n## {_GROUPS[prefix]}\n"
        yield from (f"- [{rule.code}]({rule.code}.md) {rule.name}: {rule.doc.splitlines()[0]}" for rule in rules)
