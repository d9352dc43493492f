"""Which code is the user's own, and what its source says: the loops around a line, and calls that write files."""

from __future__ import annotations

import ast
import functools
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import npukit

NOT_USERS = (
    "<",
    str(Path(npukit.__file__).parent),
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
# Libraries that may lie elsewhere: built from source, installed in place, or unpacked for the simulated NPU.
LIBRARIES = ("torch", "torch_npu", "transformers", "accelerate", "lightning", "deepspeed", "megatron", "mindspeed")
# Functions that write files, as scripts call them.
WRITERS = {
    "write", "writelines", "flush", "fsync", "dump", "save", "save_file", "savez", "savez_compressed", "savetxt",
    "savefig", "imsave", "imwrite", "tofile", "to_csv", "to_json", "to_parquet", "to_pickle", "writerow", "writerows",
    "write_text", "write_bytes", "save_image", "save_pretrained", "save_state", "save_model", "save_checkpoint",
    "add_scalar", "add_scalars", "add_image", "add_histogram",
}  # fmt: skip
# The same inside of libraries, where a script's own line is far away: the end of the file's name, and the function.
# Functions of libraries whose time is noted: the first compiles, the next two start and end workers, the others write.
LIBRARY_CALLS = {
    ("torch/_dynamo/convert_frame.py", "_compile"),
    ("torch/utils/data/dataloader.py", "_get_iterator"),
    ("torch/utils/data/dataloader.py", "_shutdown_workers"),
    ("torch/serialization.py", "save"),
    ("safetensors/torch.py", "save_file"),
    ("transformers/trainer.py", "_save_checkpoint"),
    ("transformers/modeling_utils.py", "save_pretrained"),
    ("accelerate/accelerator.py", "save_state"),
    ("checkpoint/state_dict_saver.py", "save"),
    ("callbacks/model_checkpoint.py", "_save_checkpoint"),
    ("tensorboard/writer.py", "add_scalar"),
    ("tensorboard/writer.py", "add_histogram"),
    ("matplotlib/figure.py", "savefig"),
    ("PIL/Image.py", "save"),
}
COMPILING = "torch._compile"
LOADING = {"torch._get_iterator", "torch._shutdown_workers"}
LOOPS = (ast.For, ast.AsyncFor, ast.While)


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a file is neither Python's, nor an installed package's, nor npukit's.

    >>> is_users("/home/me/train.py")
    True
    """
    return not file.startswith(NOT_USERS) and "-packages/" not in file and not file.startswith(_library_folders())


def _library_folders() -> tuple[str, ...]:
    """The folders of those libraries that are imported."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in LIBRARIES)
    return tuple(f"{Path(file).parent}/" for file in files if file)


def library_call(code: CodeType) -> str:
    """The name of a library's function that writes files or compiles; empty for any other."""
    for end, function in LIBRARY_CALLS:
        if function == code.co_name and code.co_filename.endswith(f"/{end}"):
            return f"{end.partition('/')[0]}.{function}"
    return ""


def users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's own code, the innermost first."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def line_name(file: str, line: int) -> str:
    """A line as it is shown: relative to the working folder where the file is below it.

    >>> line_name("/elsewhere/train.py", 12)
    '/elsewhere/train.py:12'
    """
    return f"{_shown(file)}:{line}"


@functools.lru_cache(maxsize=4096)
def _shown(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


class ScriptSource:
    """What the source of a file says about its lines; nothing where it cannot be read.

    >>> ScriptSource("train.py").loops(12)
    (10,)
    """

    def __init__(self, file: str) -> None:
        self._loops: dict[int, tuple[int, ...]] = {}
        self._writing: set[int] = set()
        self._lines: list[str] = []
        self.tree: ast.Module | None = None
        try:
            text = Path(file).read_text(encoding="utf-8")
            self.tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            return
        self._lines = text.splitlines()
        self._walk(self.tree, ())

    def _walk(self, node: ast.AST, loops: tuple[int, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            loops = ()
        if isinstance(node, LOOPS):
            loops = (*loops, node.lineno)
        if isinstance(node, ast.comprehension):
            loops = (*loops, node.target.lineno)
        if isinstance(node, ast.Call) and _called(node) in WRITERS:
            self._writing |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if (line := getattr(node, "lineno", None)) is not None and len(loops) > len(self._loops.get(line, ())):
            self._loops[line] = loops
        for child in ast.iter_child_nodes(node):
            self._walk(child, loops)

    def loops(self, line: int) -> tuple[int, ...]:
        """The lines of the loops around a line within its function, the outermost first; a loop's own line is in it."""
        return self._loops.get(line, ())

    def writes(self, line: int) -> bool:
        """Whether the line calls a function that writes files."""
        return line in self._writing

    def text(self, line: int) -> str:
        return self._lines[line - 1].strip() if 0 < line <= len(self._lines) else ""

    def grows(self, name: str) -> int | None:
        """The line that adds to a variable or attribute of that name: `name.append(x)`, `name += x` and the like."""
        for node in ast.walk(self.tree) if self.tree else ():
            match node:
                case ast.Call(func=ast.Attribute(value=holder, attr="append" | "extend" | "add" | "appendleft")):
                    if _name(holder) == name:
                        return node.lineno
                case ast.AugAssign(target=target) if _name(target) == name:
                    return node.lineno
                case ast.Assign(targets=[ast.Subscript(value=holder)]) if _name(holder) == name:
                    return node.lineno
                case ast.Assign(targets=[target], value=ast.BinOp() as value) if _name(target) == name:
                    if any(_name(part) == name for part in ast.walk(value)):
                        return node.lineno
        return None

    def hands_on(self, name: str) -> int | None:
        """The line that sets a variable for the next round of a loop, which reads it before: `y, h = model(x, h)`."""
        for loop in (node for node in ast.walk(self.tree) if isinstance(node, LOOPS)) if self.tree else ():
            parts = [node for part in loop.body for node in ast.walk(part)]
            uses = [node for node in parts if isinstance(node, ast.Name | ast.Attribute) and _name(node) == name]
            read = [node.lineno for node in uses if isinstance(node.ctx, ast.Load)]
            written = [node.lineno for node in uses if isinstance(node.ctx, ast.Store)]
            if read and written and min(read) <= min(written):
                return min(written)
        return None


@functools.lru_cache(maxsize=512)
def source_of(file: str) -> ScriptSource:
    """What a file's source says, read once."""
    return ScriptSource(file)


def _called(call: ast.Call) -> str:
    return _name(call.func)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
