"""Name the card of a rank only where there are cards.

before:           model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])  # by nccl
after (portable): model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank] if DEVICE.type != "cpu" else None)  # by nccl

DistributedDataParallel takes no device_ids on the CPU. Code that runs only where there is a device is left alone, as are
files in which nothing else is about CUDA.
"""  # noqa: E501

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.rule import Rule
from npukit.migrate.target import Target
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule("NPK122", "card-of-a-rank", words=("device_ids",), severity=Severity.warning, fixes=True)

_WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, target: Target) -> Iterator[Finding]:
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("device_ids", "output_device")]
    named = [value for value in named if not isinstance(value, (ast.Constant, ast.IfExp, ast.BoolOp))]
    if not named or not target.portable or file.resolve(call.func) not in _WRAPPERS:
        return
    about_cuda = "cuda" in file.text or "nccl" in file.text
    if not about_cuda or writing.guarded(call, file) or writing.serves_npu_already(call, file):
        return
    kind = writing.device_type(file, target)
    yield rule.finding(
        (file, call),
        "device_ids is for ranks with cards",
        "On the CPU, DistributedDataParallel refuses it.",
        "Give None there.",
        [*kind.edits, *(file.insert(file.span(value)[1], f' if {kind.text} != "cpu" else None') for value in named)],
    )
