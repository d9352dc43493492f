"""A library that runs on NPUs, pinned to a version from before it did.

bad (requirements.txt):
    accelerate==0.12.0

good (requirements.txt):
    accelerate>=0.25
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.facts.libraries import packaged
from npukit.migrate.requirements import meant_for_cuda, requirements
from npukit.migrate.rule import Rule, place_in
from npukit.migrate.target import Target
from npukit.report import Finding, Severity
from npukit.source import Document

rule = Rule("NPK407", "requirement-too-old", words=("==", "<"), severity=Severity.error)

_UPPER = re.compile(r"(?:==|~=|<=|<)\s*(\d+(?:\.\d+)*)")


@rule.on_text("requirements", "toml", "yaml", "shell", "docker", "python")
def check(document: Document, target: Target) -> Iterator[Finding]:
    for needed in requirements(document):
        library = packaged(needed.name)
        newest = _UPPER.search(needed.version)
        if library is None or not library.since or not newest or _number(newest[1]) >= _number(library.since):
            continue
        yield rule.finding(
            place_in(document, needed.start, needed.end),
            f"{library.name} {newest[1]} does not know NPUs yet",
            why=f"It runs on NPUs since {library.since}.",
            remedy=f"Require {needed.name}>={library.since}.",
            severity=Severity.note if meant_for_cuda(document) else None,
            evidence=document.text[needed.start : needed.end],
        )


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
