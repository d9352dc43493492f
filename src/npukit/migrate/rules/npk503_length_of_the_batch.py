"""Sequences padded to the longest one in each batch.

bad:
    batch = tokenizer(texts, padding=True, return_tensors="pt")

good:
    batch = tokenizer(texts, padding="max_length", max_length=512, return_tensors="pt")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK503",
    "length-of-the-batch",
    words=("padding", "pad_sequence", "DataCollator"),
    severity=Severity.note,
    why="Almost every step has a new shape, which has to be compiled or looked up on NPUs.",
    remedy="Pad to a fixed length or to a multiple of 128 (pad_to_multiple_of), or pack sequences.",
)


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    name = file.resolve(call.func) or ""
    if file.argument(call, None, "pad_to_multiple_of") is not None:
        return
    padding = file.argument(call, None, "padding")
    tokenized = isinstance(padding, ast.Constant) and padding.value in (True, "longest")
    tokenizer = "token" in file.source(call.func).lower() or "processor" in file.source(call.func).lower()
    if name == "torch.nn.utils.rnn.pad_sequence" or (tokenized and (tokenizer or name.startswith("transformers."))):
        yield rule.finding((file, call), "sequences are padded to the longest one in each batch")
