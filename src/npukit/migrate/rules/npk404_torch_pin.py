"""A pinned torch that is a CUDA build, or that has no matching torch_npu.

bad (requirements.txt):
    torch==1.7.1

good (requirements.txt):
    torch==2.7.1
"""

from __future__ import annotations

import re

from npukit.facts.compatibility import pythons_by_torch, releases
from npukit.facts.versions import key
from npukit.migrate.goal import OLDEST_TORCH_NPU
from npukit.migrate.requirements import meant_for_cuda, newest_allowed, requirements
from npukit.migrate.rule import Document, Effort, Findings, Goal, Rule, Severity

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


@rule.on_text("requirements", "toml", "yaml", "shell", "docker", "setup")
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
                (document, needed.span),
                f"torch{pin[2]} is a CUDA build",
                remedy=f"Require torch=={pin[1]} and the torch_npu release for it.",
                severity=severity,
            )
        elif (pin and not any(version.startswith(pin[1]) for version in known)) or (
            newest and key(newest) < key(OLDEST_TORCH_NPU)
        ):
            which = pin[1] if pin else f"{newest} or older"
            yield rule.finding(
                (document, needed.span),
                f"there is no torch_npu for torch {which} on PyPI",
                remedy=f"Pin a torch release that has one: {', '.join(list(pythons_by_torch())[:4])} …",
                severity=severity,
            )
    for match in () if document.kind == "python" else _INDEX.finditer(document.text):
        yield rule.finding(
            (document, match.span()),
            "this package index serves CUDA builds",
            why="torch_npu works with the CPU build of torch.",
            remedy="Use https://download.pytorch.org/whl/cpu, or the default index.",
            severity=severity,
        )
