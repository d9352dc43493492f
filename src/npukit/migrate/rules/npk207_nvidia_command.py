"""NVIDIA command-line tools called from Python, shell scripts or Dockerfiles.

bad:
    import subprocess
    subprocess.run(["nvidia-smi", "--query-gpu=memory.used"])

good:
    import subprocess
    subprocess.run(["npu-smi", "info"])
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.rule import Document, Effort, Finding, Findings, Goal, Place, PythonFile, Rule, Severity, Where

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
    "system",
    "popen",
    "run",
    "Popen",
    "call",
    "check_call",
    "check_output",
    "getoutput",
    "getstatusoutput",
    "which",
)

rule = Rule(
    "NPK207",
    "nvidia-command",
    words=(*(tool for tool in _TOOLS if tool != "ncu"), "ncu ", "ncu'", 'ncu"'),
    severity=Severity.warning,
    why="The tool is part of NVIDIA's driver or toolkit.",
    remedy="Use npu-smi for nvidia-smi, msprof or `npukit profile` for nsys, and CANN's compilers for nvcc.",
    effort=Effort(20, 5),
    supersedes=("NPK150",),
)


@rule.on_call(_RUNNERS)
def check_python(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if not call.args:
        return
    if (file.resolve(call.func) or "").rpartition(".")[2] not in _RUNNERS:
        return
    if match := _COMMAND.search(file.source(call.args[0])):
        yield _finding(match[1], (file, call))


@rule.on_text("shell", "docker")
def check_text(document: Document, goal: Goal) -> Findings:
    start = 0
    for line in document.text.splitlines(keepends=True):
        if not line.lstrip().startswith("#") and (match := _COMMAND.search(line)):
            yield _finding(match[1], (document, (start + match.start(1), start + match.end(1))), line.strip())
        start += len(line)


@rule.on_text("notebook")
def check_notebook(document: Document, goal: Goal) -> Findings:
    for cell, line, text in document.book.commands if document.book else ():
        if match := _COMMAND.search(text.replace("!", " ")):
            yield _finding(match[1], Place(document.path, line, cell=cell), text.strip())


def _finding(tool: str, where: Where, evidence: str = "") -> Finding:
    return rule.finding(where, f"{tool} is not available on an NPU machine", remedy=_TOOLS[tool], evidence=evidence)
