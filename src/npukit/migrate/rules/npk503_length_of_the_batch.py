"""Sequences padded to the longest one in each batch.

bad:
    batch = tokenizer(texts, padding=True, return_tensors="pt")

good:
    batch = tokenizer(texts, padding="max_length", max_length=512, return_tensors="pt")
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK503",
    "length-of-the-batch",
    words=("padding", "pad_sequence"),
    needs=("token", "processor", "transformers", "pad_sequence"),
    severity=Severity.note,
    why="Almost every step has a new shape, which has to be compiled or looked up on NPUs.",
    remedy="Pad to a fixed length or to a multiple of 128 (pad_to_multiple_of), or pack sequences.",
)


_WHAT = "sequences are padded to the longest one in each batch"


@rule.on_function("torch.nn.utils.rnn.pad_sequence")
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    yield rule.finding((file, call), _WHAT)


@rule.on(ast.keyword, says=("padding",))
def check_tokenizer(keyword: ast.keyword, file: PythonFile, goal: Goal) -> Findings:
    """Report a tokenizer that pads to the longest text of the batch: tokenizer(texts, padding=True)"""
    value, call = keyword.value, file.parent(keyword)
    if not isinstance(value, ast.Constant) or value.value not in (True, "longest"):
        return
    if not isinstance(call, ast.Call) or file.argument(call, None, "pad_to_multiple_of") is not None:
        return
    name = file.source(call.func).lower()
    if "token" in name or "processor" in name or (file.resolve(call.func) or "").startswith("transformers."):
        yield rule.finding((file, call), _WHAT)
