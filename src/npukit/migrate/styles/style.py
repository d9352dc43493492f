"""What every style answers: how code names the device, its kind, its functions and its backend."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from npukit.migrate import torch_imports
from npukit.migrate.goal import Goal
from npukit.migrate.layout import configured_formatter
from npukit.source import Document, Edit, PythonFile, per_file

Edits = tuple[Edit, ...]


@dataclass(frozen=True)
class Text:
    """Code to write, and the edits elsewhere in the file without which it would not run."""

    text: str
    edits: Edits = ()


# Where a conditional expression needs no brackets.
TAKES_ANY = (ast.Assign, ast.AnnAssign, ast.Return, ast.Call, ast.keyword, ast.arguments, ast.Dict, ast.List, ast.Tuple)


class Style(Protocol):
    """What is written in the place of CUDA's names. None or no edits: the place cannot say it, and is reported."""

    accelerator: str  # what sentences call the device
    imports_from_npu: bool  # whether torch.npu's functions are imported by name

    def device(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        """The device, where torch takes a torch.device, a name or a number."""

    def device_type(self, node: ast.AST, file: PythonFile, goal: Goal, of_card: bool = False) -> Text | None:
        """The kind of device as a string; with `of_card` never another than CUDA's or the NPU's."""

    def device_string(self, node: ast.expr, match: re.Match[str], file: PythonFile, goal: Goal) -> Edits:
        """The edits for a string that names a CUDA device: "cuda", "cuda:0", f"cuda:{rank}"."""

    def moved(self, call: ast.Call, func: ast.Attribute, file: PythonFile, goal: Goal) -> Edits:
        """The edits for x.cuda()."""

    def module(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        """The module with the functions of torch.cuda."""

    def named(self, function: str, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        """A function of torch.cuda by its name."""

    def function(self, part: ast.expr, function: str, file: PythonFile, goal: Goal) -> Text | None:
        """The name and the edits for torch.cuda.FUNCTION."""

    def backend(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        """The name of the communication backend."""

    def backends(self, node: ast.AST, pairs: str, file: PythonFile, goal: Goal) -> Text | None:
        """The same for several devices: "cpu:gloo,cuda:nccl"."""

    def keeps(self, node: ast.AST, file: PythonFile, goal: Goal) -> bool:
        """Whether code may stay as it is, since it is harmless or is extended as a whole."""

    def either(self, added: Sequence[Edit], renamed: Sequence[Edit], file: PythonFile) -> Edits:
        """Which of two changes is made: the NPU's name beside CUDA's, or in its place."""

    def finished(self, before: Document, after: Document, goal: Goal) -> Document:
        """The file once all rules are done with it."""


def torch_name(file: PythonFile) -> Text:
    """What torch is called at the top of this file; it is imported where it is not."""
    name = torch_imports.at_top(file)
    return Text(name) if name else Text("torch", (file.insert_line(*torch_imports.insertion(file)),))


def with_replacement(new: Text, part: ast.AST, file: PythonFile) -> Text:
    """A text together with the edit that puts it in the place of a node."""
    return Text(new.text, (*new.edits, file.replace(part, new.text)))


def parenthesized_for(text: str, node: ast.AST, file: PythonFile) -> str:
    """A text for the place of a node, in brackets if it is a choice or an `or` that would take in what is around.

    >>> parenthesized_for('"hccl" if hasattr(torch, "npu") else "nccl"', node, file)  # backend or "nccl"
    '("hccl" if hasattr(torch, "npu") else "nccl")'
    """
    parent = file.parent(node)
    is_last = isinstance(parent, ast.IfExp) and parent.orelse is node
    takes_any = isinstance(parent, TAKES_ANY) and getattr(parent, "func", None) is not node
    is_test = isinstance(parent, (ast.If, ast.IfExp, ast.While, ast.Assert)) and parent.test is node
    is_whole = " if " not in text and (" or " not in text or is_test)
    start, end = file.span(node)
    in_brackets = file.text[start - 1 : start] == "(" and file.text[end : end + 1] == ")"
    return text if is_whole or is_last or takes_any or in_brackets else f"({text})"


def enclosing_call(node: ast.expr, file: PythonFile) -> ast.expr:
    """The call of a function, or the function where it is passed on."""
    parent = file.parent(node)
    return parent if isinstance(parent, ast.Call) and parent.func is node else node


def quote_near(node: ast.AST, file: PythonFile) -> str:
    """The quotation mark of strings around, in the statement or else in the file."""
    return _more_used(file.source(file.statement(node))) or usual_quote(file)


@per_file
def usual_quote(file: PythonFile) -> str:
    """The quotation mark of a file's strings, or of those that its formatter writes."""
    formatter = configured_formatter(file.path.parent.absolute(), file.names.root and file.names.root.absolute())
    return _more_used(file.text) or (formatter.quote if formatter else '"')


def _more_used(text: str) -> str:
    double, single = (len(re.findall(rf"{mark}(?<![\w{mark}]{mark})(?!{mark})", text)) for mark in ('"', "'"))
    return "'" if single > double else '"' if double > single else ""
