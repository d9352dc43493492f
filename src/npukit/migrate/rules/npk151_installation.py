"""Find base images and requirements that bring CUDA.

before:  FROM nvidia/cuda:11.8.0-devel-ubuntu22.04
finds:   start from an image with CANN

Requirements that exist for CUDA only (nvidia-*, cupy, torch with a +cu version) are named likewise. What `npukit
analyze` says of the same places is more exact: NPK208, NPK403 and NPK404; it leaves this rule out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule, place_in
from npukit.report import Finding, Severity
from npukit.source import Document

rule = Rule("NPK151", "installation", words=("cuda", "nvidia", "cupy", "+cu", "/cu1"), severity=Severity.warning)

_IMAGE = re.compile(r"^[ \t]*FROM[ \t]+(\S*(?:nvidia|cuda)\S*)", re.MULTILINE | re.IGNORECASE)
_REQUIREMENT = re.compile(
    r"^[ \t]*((?:nvidia-|cupy|pycuda|cuda-)[\w.\-]*|torch\w*==[\w.]+\+cu\d+|.*/whl/cu\d+)", re.MULTILINE
)


@rule.on_text("docker")
def image(document: Document, goal: Goal) -> Iterator[Finding]:
    for match in _IMAGE.finditer(document.text):
        yield rule.finding(
            place_in(document, *match.span(1)),
            f"the image {match[1]} has CUDA and no CANN",
            "NPUs need CANN inside the image and the driver's folder mounted from the host.",
            "Start from an image with CANN, for instance quay.io/ascend/cann, and install torch and torch_npu in it.",
            evidence=match[0].strip(),
        )


@rule.on_text("requirements")
def requirement(document: Document, goal: Goal) -> Iterator[Finding]:
    for match in _REQUIREMENT.finditer(document.text):
        yield rule.finding(
            place_in(document, *match.span(1)),
            f"{match[1].strip()} is for CUDA",
            "It cannot be installed for, or is of no use on, NPUs.",
            f"Require torch and torch_npu=={goal.target.torch_npu}.* instead.",
            evidence=match[0].strip(),
        )
