"""The protocol of styles: how code names the device, its kind, its functions and its backend."""

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
    """Code to write, with the edits elsewhere in the file that it depends on."""

    text: str
    edits: Edits = ()


# Parents in which a conditional expression needs no parentheses.
TAKES_ANY = (ast.Assign, ast.AnnAssign, ast.Return, ast.Call, ast.keyword, ast.arguments, ast.Dict, ast.List, ast.Tuple)


class Style(Protocol):
    """What to write in place of CUDA's names. None or no edits mean that the style has no words for it, and it is
    reported.
    """

    accelerator: str  # the name of the device in sentences
    imports_from_npu: bool  # whether torch.npu's functions are imported by name

    def device(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        """The device, where torch accepts a torch.device, a name or a number."""

    def device_type(self, node: ast.AST, file: PythonFile, goal: Goal, of_card: bool = False) -> Text | None:
        """The kind of device as a string. With `of_card` it is CUDA's or the NPU's, never the CPU's."""

    def device_string(self, node: ast.expr, match: re.Match[str], file: PythonFile, goal: Goal) -> Edits:
        """The edits for a string that names a CUDA device: "cuda", "cuda:0", f"cuda:{rank}"."""

    def move(self, call: ast.Call, func: ast.Attribute, file: PythonFile, goal: Goal) -> Edits:
        """The edits for x.cuda()."""

    def module(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        """The module with the functions of torch.cuda."""

    def function_name(self, function: str, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        """A function of torch.cuda by its name."""

    def function(self, part: ast.expr, function: str, file: PythonFile, goal: Goal) -> Text | None:
        """The name and the edits for torch.cuda.FUNCTION."""

    def backend(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        """The name of the communication backend."""

    def backends(self, node: ast.AST, pairs: str, file: PythonFile, goal: Goal) -> Text | None:
        """The backends of several devices: "cpu:gloo,cuda:nccl"."""

    def keeps(self, node: ast.AST, file: PythonFile, goal: Goal) -> bool:
        """Whether code may stay because it is harmless, or because a larger part of it is extended."""

    def choose(self, added: Sequence[Edit], renamed: Sequence[Edit], file: PythonFile) -> Edits:
        """Choose between adding the NPU's name beside CUDA's and replacing CUDA's name."""

    def finish(self, before: Document, after: Document, goal: Goal) -> Document:
        """Finish a file after all rules are done with it."""


def torch_name(file: PythonFile) -> Text:
    """Return the name of torch at the top of a file, with the edit that imports it if necessary."""
    name = torch_imports.at_top(file)
    return Text(name) if name else Text("torch", (file.insert_line(*torch_imports.insertion(file)),))


def with_replacement(new: Text, part: ast.AST, file: PythonFile) -> Text:
    """Return a text together with the edit that puts it in place of a node."""
    return Text(new.text, (*new.edits, file.replace(part, new.text)))


def parenthesized_for(text: str, node: ast.AST, file: PythonFile) -> str:
    """Return a text to put in place of a node, in parentheses if the code around it would change its meaning.

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
    """Return the call of a function, or the function itself if it is not called."""
    parent = file.parent(node)
    return parent if isinstance(parent, ast.Call) and parent.func is node else node


def quote_near(node: ast.AST, file: PythonFile) -> str:
    """Return the quotation mark of the strings in the statement, else in the file."""
    return _more_used(file.source(file.statement(node))) or usual_quote(file)


@per_file
def usual_quote(file: PythonFile) -> str:
    """Return the quotation mark of most strings in a file, else the one that its formatter prefers."""
    formatter = configured_formatter(file.path.parent.absolute(), file.names.root and file.names.root.absolute())
    return _more_used(file.text) or (formatter.quote if formatter else '"')


def _more_used(text: str) -> str:
    double, single = (len(re.findall(rf"{mark}(?<![\w{mark}]{mark})(?!{mark})", text)) for mark in ('"', "'"))
    return "'" if single > double else '"' if double > single else ""
