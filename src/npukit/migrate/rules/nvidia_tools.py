"""NVIDIA's commands (NPK207) and container images built for CUDA (NPK208)."""

from __future__ import annotations

import ast
import re

from npukit.migrate.requirements import meant_for_cuda
from npukit.migrate.rule import Document, Finding, Findings, Goal, Place, PythonFile, Severity, Where, described

_TOOLS = {
    "nvidia-smi": "Use npu-smi info.",
    "nvcc": "Do not build CUDA code on NPUs.",
    "nsys": "Use msprof.",
    "ncu": "Use msprof op.",
    "nvprof": "Use msprof.",
    "dcgmi": "Use npu-smi info.",
    "cuda-gdb": "Use msdebug.",
    "compute-sanitizer": "Use mssanitizer.",
}
_COMMAND = re.compile(rf"(?:^|[\s;&|(`\"'/])({'|'.join(_TOOLS)})(?=[\s;&|)`\"']|$)", re.MULTILINE)
_RUNNERS = (
    *("system", "popen", "run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"),
    "which",
)
_FROM = re.compile(r"^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)", re.MULTILINE | re.IGNORECASE)
_IMAGE = re.compile(r"""^\s*-?\s*(?:image|base_image)\s*:\s*["']?([^\s"']+)""", re.MULTILINE)
_FOR_CUDA = re.compile(r"nvidia|nvcr\.io/|cuda|[:-]cu1[0-9]{2}|-gpu\b", re.IGNORECASE)


@described("NPK207").on_call(_RUNNERS)
def command_in_python(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if not call.args or (file.resolve(call.func) or "").rpartition(".")[2] not in _RUNNERS:
        return
    if match := _COMMAND.search(file.source(call.args[0])):
        yield _command(match[1], (file, call))


@described("NPK207").on_text("shell", "docker")
def command_in_script(document: Document, goal: Goal) -> Findings:
    start = 0
    for line in document.text.splitlines(keepends=True):
        if not line.lstrip().startswith("#") and (match := _COMMAND.search(line)):
            yield _command(match[1], (document, (start + match.start(1), start + match.end(1))), line.strip())
        start += len(line)


@described("NPK207").on_text("notebook")
def command_in_notebook(document: Document, goal: Goal) -> Findings:
    for cell, line, text in document.book.commands if document.book else ():
        if match := _COMMAND.search(text.replace("!", " ")):
            yield _command(match[1], Place(document.path, line, cell=cell), text.strip())


def _command(tool: str, where: Where, evidence: str = "") -> Finding:
    what = f"{tool} is not available on an NPU machine"
    return described("NPK207").finding(where, what, remedy=_TOOLS[tool], evidence=evidence)


@described("NPK208").on_text("docker", "yaml")
def image(document: Document, goal: Goal) -> Findings:
    for match in (_FROM if document.kind == "docker" else _IMAGE).finditer(document.text):
        if _FOR_CUDA.search(match[1]):
            yield described("NPK208").finding(
                (document, match.span(1)),
                f"the image {match[1]} is built for CUDA",
                severity=Severity.note if meant_for_cuda(document) else None,
                evidence=match[0].strip(),
            )
