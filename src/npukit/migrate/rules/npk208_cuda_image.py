"""Container images built for CUDA.

bad (Dockerfile):
    FROM nvidia/cuda:12.1.0-devel-ubuntu22.04

good (Dockerfile):
    FROM quay.io/ascend/cann:8.5.1-910b-ubuntu22.04-py3.11
"""

from __future__ import annotations

import re

from npukit.migrate.requirements import meant_for_cuda
from npukit.migrate.rule import Document, Effort, Findings, Goal, Rule, Severity

rule = Rule(
    "NPK208",
    "cuda-image",
    words=("nvidia", "cuda", "nvcr.io"),
    why="The image contains neither CANN nor torch_npu, and its torch is a CUDA build.",
    remedy="Start from an image with CANN, such as quay.io/ascend/cann, and install torch and torch_npu.",
    effort=Effort(20, 5),
)

_DOCKER = re.compile(r"^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)", re.MULTILINE | re.IGNORECASE)
_IMAGE = re.compile(r"""^\s*-?\s*(?:image|base_image)\s*:\s*["']?([^\s"']+)""", re.MULTILINE)
_CUDA = re.compile(r"nvidia|nvcr\.io/|cuda|[:-]cu1[0-9]{2}|-gpu\b", re.IGNORECASE)


@rule.on_text("docker", "yaml")
def check(document: Document, goal: Goal) -> Findings:
    for match in (_DOCKER if document.kind == "docker" else _IMAGE).finditer(document.text):
        if _CUDA.search(match[1]):
            yield rule.finding(
                (document, match.span(1)),
                f"the image {match[1]} is built for CUDA",
                severity=Severity.note if meant_for_cuda(document) else None,
                evidence=match[0].strip(),
            )
