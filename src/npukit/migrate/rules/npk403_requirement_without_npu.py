"""Dependencies that cannot be installed or used on an NPU machine.

bad (requirements.txt):
    flash-attn==2.5.6

good (requirements.txt):
    transformers>=4.40
"""

from __future__ import annotations

from npukit.facts.libraries import Library, packaged
from npukit.migrate.imported_libraries import STATUS, advice
from npukit.migrate.requirements import meant_for_cuda, requirements
from npukit.migrate.rule import Document, Effort, Findings, Goal, Rule, Severity

rule = Rule(
    "NPK403",
    "requirement-without-npu",
    words=("requires", "depend", "pip", "conda", "==", ">=", "\n"),
    why="The package does not run on NPUs.",
    remedy="Make the requirement optional, and use its replacement on NPUs (`npukit explain NPK403` lists them).",
    effort=Effort(15, 5),
)
_PART = "It is part of CUDA"
_SEVERITY = {"replace": Severity.error, "blocks": Severity.error, "adapter": Severity.warning, "partial": Severity.note}


@rule.on_text("requirements", "toml", "yaml", "shell", "docker", "setup", "notebook")
def check(document: Document, goal: Goal) -> Findings:
    parts_of_cuda = 0
    for needed in requirements(document):
        library = packaged(needed.name) or _of_cuda(needed.name)
        parts_of_cuda += bool(library and library.why == _PART)
        if library and library.why == _PART and parts_of_cuda > 1:
            continue  # they come and go with a torch for CUDA: one of them says it
        if library is None or library.verdict not in _SEVERITY:
            continue
        yield rule.finding(
            needed.where(document),
            f"{library.name} {STATUS[library.verdict]}",
            why=f"{library.why}.",
            remedy=advice(library),
            evidence=needed.evidence,
            severity=Severity.note if meant_for_cuda(document) else _SEVERITY[library.verdict],
        )


def _of_cuda(package: str) -> Library | None:
    """Return a package that is part of CUDA as a library, else None."""
    if not package.lower().startswith(("nvidia-", "nvidia_", "cuda-", "cuda_", "cupy-", "cudatoolkit", "pytorch-cuda")):
        return None
    return Library(package, (), "replace", _PART, instead="CANN, which is installed outside of Python")
