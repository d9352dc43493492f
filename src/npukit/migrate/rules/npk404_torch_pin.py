"""A pinned torch that is a CUDA build, or that has no matching torch_npu.

bad (requirements.txt):
    torch==1.7.1

good (requirements.txt):
    torch==2.7.1
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.facts.compatibility import pythons_by_torch, releases
from npukit.facts.versions import key
from npukit.migrate.goal import OLDEST_TORCH_NPU
from npukit.migrate.requirements import meant_for_cuda, newest_allowed, requirements
from npukit.migrate.rule import Document, Effort, Findings, Goal, Place, Rule, Severity, Where

rule = Rule(
    "NPK404",
    "torch-pin",
    words=("torch",),
    why="Every torch_npu release works with exactly one torch release, in its CPU build.",
    remedy="Pin a torch that has a torch_npu, such as torch==2.9.0 with torch_npu==2.9.0.post6.",
    effort=Effort(15, 5),
    supersedes=("NPK403",),
)

_INDEX = re.compile(r"https?://download\.pytorch\.org/whl/(?:nightly/)?cu\d+\S*")


@rule.on_text("requirements", "toml", "yaml", "shell", "docker", "setup", "notebook")
def check(document: Document, goal: Goal) -> Findings:
    released = {release.torch.split("+")[0] for release in releases()} | set(pythons_by_torch())
    known = {version for version in released if key(version) >= key(OLDEST_TORCH_NPU)}
    severity = Severity.note if meant_for_cuda(document) else Severity.error
    for needed in requirements(document):
        if needed.name not in ("torch", "pytorch"):
            continue
        pin = re.match(r"\s*={1,3}\s*v?(\d+\.\d+(?:\.\d+)?)(\+cu\d+)?", needed.version)
        newest = newest_allowed(needed.version)
        if pin and pin[2]:
            yield rule.finding(
                needed.where(document),
                f"torch{pin[2]} is a CUDA build",
                remedy=f"Require torch=={pin[1]} and the torch_npu release for it.",
                evidence=needed.evidence,
                severity=severity,
            )
        elif (pin and not any(version.startswith(pin[1]) for version in known)) or (
            newest and key(newest) < key(OLDEST_TORCH_NPU)
        ):
            which = pin[1] if pin else f"{newest} or older"
            yield rule.finding(
                needed.where(document),
                f"there is no torch_npu for torch {which} on PyPI",
                remedy=f"Pin a torch release that has one: {', '.join(list(pythons_by_torch())[:4])} …",
                evidence=needed.evidence,
                severity=severity,
            )
    for where, evidence in _indexes(document):
        yield rule.finding(
            where,
            "this package index serves CUDA builds",
            why="torch_npu works with the CPU build of torch.",
            remedy="Use https://download.pytorch.org/whl/cpu, or the default index.",
            evidence=evidence,
            severity=severity,
        )


def _indexes(document: Document) -> Iterator[tuple[Where, str]]:
    """Yield where an index of CUDA builds is named, with the command of a notebook that names it."""
    if document.book:
        for cell, line, text in document.book.commands:
            if _INDEX.search(text):
                yield Place(document.path, line, cell=cell), text.strip()
    elif document.kind != "python":
        yield from (((document, match.span()), "") for match in _INDEX.finditer(document.text))
