"""The npu style, in which torch_npu's names replace CUDA's.

before:  device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
after:   device = torch.device("npu" if torch.npu.is_available() else "cpu")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from npukit.facts.torch_npu.names import names_of
from npukit.migrate import torch_imports
from npukit.migrate.goal import Goal
from npukit.migrate.styles.style import Edits, Text, quote_near, torch_name, with_replacement
from npukit.source import Document, Edit, PythonFile

RENAMED = {"CUDAGraph": "NPUGraph", "CUDAPluggableAllocator": "NPUPluggableAllocator"}


def import_torch_npu(file: PythonFile) -> Edits:
    """Return the edits that add `import torch_npu` below `import torch`, unless the file imports it already."""
    if file.imports("torch_npu") or not torch_imports.loads_torch(file):
        return ()
    return (file.insert_import("import torch_npu", after="torch"),)


def goes_over(node: ast.AST, goal: Goal) -> bool:
    """Return whether torch.npu has every name that a statement imports from torch.cuda."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
    return "amp" not in names and all(name in names_of("npu", goal.target.torch_npu) or name == "*" for name in names)


class Npu:
    """Writes torch.npu, .npu(), "npu" and hccl."""

    accelerator = "NPU"
    imports_from_npu = True

    def device(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        return self.device_type(node, file, goal)

    def device_type(self, node: ast.AST, file: PythonFile, goal: Goal, of_card: bool = False) -> Text | None:
        mark = '"' if isinstance(node, ast.Module) else quote_near(node, file)
        return Text(f"{mark}npu{mark}", import_torch_npu(file))

    def device_string(self, node: ast.expr, match: re.Match[str], file: PythonFile, goal: Goal) -> Edits:
        start = file.span(node)[0]
        return (*import_torch_npu(file), Edit(start + match.start(3), start + match.end(3), "npu"))

    def move(self, call: ast.Call, func: ast.Attribute, file: PythonFile, goal: Goal) -> Edits:
        end = file.span(func)[1]
        return (*import_torch_npu(file), Edit(end - len("cuda"), end, "npu"))

    def module(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        torch = torch_name(file)
        return Text(f"{torch.text}.npu", (*torch.edits, *import_torch_npu(file)))

    def function_name(self, function: str, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        module = self.module(node, file, goal)
        return Text(f"{module.text}.{RENAMED.get(function, function)}", module.edits)

    def function(self, part: ast.expr, function: str, file: PythonFile, goal: Goal) -> Text | None:
        """In a written-out torch.cuda.FUNCTION only `cuda` changes."""
        if isinstance(part, ast.Name):  # from torch.cuda import NAME
            if function == "OutOfMemoryError" or any(goes_over(binding.node, goal) for binding in file.bindings(part)):
                return None
            return with_replacement(Text(self.function_name(function, part, file, goal).text), part, file)
        if function == "OutOfMemoryError":
            return with_replacement(Text(f"{torch_name(file).text}.OutOfMemoryError"), part, file)
        assert isinstance(part, ast.Attribute)
        if function and not isinstance(part.value, ast.Attribute):  # cuda.NAME
            module = self.module(part, file, goal)
            return Text(f"{module.text}.{function}", (*module.edits, file.replace(part.value, module.text)))
        new, end = f"torch.npu.{RENAMED.get(function, function)}", file.span(part)[1]
        at = file.span(part.value)[1] if function else end
        edits = [Edit(at - len("cuda"), at, "npu")]
        if function in RENAMED:
            edits.append(Edit(end - len(function), end, RENAMED[function]))
        return Text(new.rstrip("."), (*import_torch_npu(file), *edits))

    def backend(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        mark = '"' if isinstance(node, ast.Module) else quote_near(node, file)
        return Text(f"{mark}hccl{mark}", import_torch_npu(file))

    def backends(self, node: ast.AST, pairs: str, file: PythonFile, goal: Goal) -> Text | None:
        return Text(pairs.replace("cuda:", "npu:").replace("nccl", "hccl"), import_torch_npu(file))

    def keeps(self, node: ast.AST, file: PythonFile, goal: Goal) -> bool:
        return False

    def choose(self, added: Sequence[Edit], renamed: Sequence[Edit], file: PythonFile) -> Edits:
        return tuple(renamed)

    def finish(self, before: Document, after: Document, goal: Goal) -> Document:
        return after
