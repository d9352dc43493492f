"""A page of docs/reference/rules for each rule, made from the rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from npukit.facts.affinity import operators as affinity_operators
from npukit.facts.cuda_apis import cuda_apis
from npukit.facts.cuda_settings import cuda_settings
from npukit.facts.libraries import libraries
from npukit.facts.removed_names import removed_names
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules, rule_of
from npukit.migrate.rules.libraries import VERDICTS

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
_CHECKS = {
    "NPK001": "`npukit analyze PATH` no longer lists the file.",
    "NPK002": "`npukit -v analyze PATH` shows the traceback, for the report.",
    "NPK003": '`npukit migrate PATH --test ""` imports every changed file before and after.',
    "NPK510": "`npukit run --device sim --trace-ops ops.json SCRIPT`, then `npukit analyze PATH --trace-ops ops.json`.",
    "NPK511": "`npukit run --device sim --trace-ops ops.json SCRIPT`, then `npukit analyze PATH --trace-ops ops.json`.",
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
    texts = {f"{rule.code}.md": page(rule).replace("\n\n", f"\n\n{_AS_WRITTEN}\n\n", 1) for rule in all_rules()}
    return texts | {"README.md": "\n".join(_index()) + "\n"}


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
    yield from _known(rule.code)
    yield f"\n**Check:** {_CHECKS.get(rule.code) or _check(rule)}"
    if rule.effort.first:
        first, further = rule.effort
        yield f"\n**Estimated effort:** {_time(first)} for the first place, {_time(further)} for each other one."
    if rule.supersedes:
        yield f"\n**Replaces on the same line:** {', '.join(rule.supersedes)}."


def _check(rule: Rule) -> str:
    if rule.fixes:
        return (
            f"`npukit migrate PATH{' --distributed' * rule.distributes} --select {rule.code} --diff` shows the change, "
            "and `npukit verify` compares the results."
        )
    return f"`npukit analyze PATH --select {rule.code}` no longer reports it."


def _known(code: str) -> Iterator[str]:
    """What the facts know about the subject of a rule, as a table."""
    rows = list(_fact_rows(code))
    if rows:
        yield from ("", "| name | on NPUs | why |", "|---|---|---|")
        yield from (f"| {name} | {remedy} | {why} |" for name, remedy, why in rows)


def _fact_rows(code: str) -> Iterator[tuple[str, str, str]]:
    verdicts = {**VERDICTS, "NPK403": ("replace",)}.get(code, ())
    patterns = {"NPK601": "attention", "NPK602": "rms_norm", "NPK603": "swiglu geglu", "NPK604": "rotary"}
    patterns |= {"NPK605": "adamw"}
    for library in libraries():
        if library.verdict in verdicts:
            yield library.name, library.needs or library.instead, library.why
    kinds = {"NPK201": "none", "NPK202": "differs", "NPK203": "ignored"}
    for api in cuda_apis():
        if api.kind == kinds.get(code):
            yield f"`{api.name}`", api.remedy, api.why
    for removed in removed_names().values() if code == "NPK307" else ():
        yield f"`{removed.name}`", removed.instead, f"not in torch {removed.missing_from} and newer"
    for setting in cuda_settings().values() if code == "NPK406" else ():
        yield f"`{setting.name}`", setting.remedy, setting.why
    for operator in affinity_operators():
        if operator.pattern in patterns.get(code, "").split():
            yield f"`{operator.call}`", operator.portable and f"or `{operator.portable}`", operator.trap


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
