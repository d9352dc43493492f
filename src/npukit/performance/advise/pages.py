"""A page of docs/reference/advice for each rule, made from the rule."""

from __future__ import annotations

import re
import textwrap

from npukit.performance.advise.rule import NEEDS, Rule
from npukit.performance.advise.rules import all_rules, rule_of


def advice_page(code: str) -> str | None:
    """What there is to say about a rule, as Markdown; None where there is no such rule.

    >>> advice_page("NPK803").splitlines()[0]
    '# NPK803: data-loader'
    """
    rule = rule_of(code)
    return page(rule) if rule else None


def page(rule: Rule) -> str:
    """A rule's page."""
    devices = "any device" if len(rule.devices) == 3 else " and ".join(device.upper() for device in rule.devices)
    needs = [NEEDS[need] for need in rule.needs if need in NEEDS]
    needed = f"\n**Needs:** {'; '.join(needs)}.\n" if needs else ""
    text, _, example = rule.doc.partition("\n\nexample:\n")
    language = "bash" if re.match(r"\s*(npukit|export|unset|npu-smi|hccn_tool|--)", example) else "python"
    return (
        f"# {rule.code}: {rule.name}\n\nreported by `npukit advise` · {devices}\n\n{text}\n\n"
        f"**Why:** {rule.why}\n\n**What to do:** {rule.remedy}\n\n"
        f"```{language}\n{textwrap.dedent(example)}\n```\n\n"
        "**Check:** record again and compare: `npukit advise BEFORE AFTER`.\n" + needed
    )


def index() -> str:
    """The list of all rules."""
    rows = [f"- [{rule.code}]({rule.code}.md) {rule.name}: {rule.doc.splitlines()[0]}" for rule in all_rules()]
    head = "`npukit explain NPK803` prints one page."
    return f"# Advice on profiles\n\n{head}\n\n" + "\n".join(rows) + "\n"


def pages() -> dict[str, str]:
    """The pages of docs/reference/advice by file name, with their index."""
    return {f"{rule.code}.md": page(rule) for rule in all_rules()} | {"README.md": index()}
