"""Files that are broken in every way we know of, made the same each time."""

from __future__ import annotations

import json
import os
from pathlib import Path

CODE = "import torch\nmodel = Net().cuda()\nx = torch.zeros(3, device='cuda')\n"
NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Training on cuda"]},
            {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None,
             "source": ["import torch\n", "model = Net().cuda()\n", "print('torch.cuda')"]},
        ],
        "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
    },
    indent=1,
)  # fmt: skip

PYTHON_2 = (
    "print 'cuda'",
    "exec code in scope",
    "raise ValueError, 'no'",
    "x = `y`",
    "n = 0777",
    "n = 10L",
    "if a <> b: pass",
    "s = ur'x'",
    "def f((a, b)): pass",
    "try:\n    pass\nexcept ValueError, e:\n    pass",
    "print 'a' % b, c",
)
SYNTAX = (
    "def f(:\n    pass",
    "x = (1,",
    "x = [1,",
    "x = {1:",
    "x = 'never closed",
    'x = """never closed',
    "f'{x'",
    "f'{}'",
    "if True\n    pass",
    "class:\n    pass",
    "for x in:\n    pass",
    "return = 3",
    "1 = x",
    "x = 3 = y +",
    "lambda: (yield",
    "x = $y",
    "x = y?",
    "a b c",
    "def f():\npass",
    "  x = 1\n y = 2",
    "if x:\n\ty = 1\n        z = 2",
    "x = 1__0",
    "0x",
    "1e",
    "'\\N{no such}'",
    "b'\u00e9'",
    "<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> other",
    "import",
    "from x import",
    "from . import *, y",
    "with open(x) as: pass",
    "@\ndef f(): pass",
    "async x",
    "del f()",
    "f(**x, *y)",
    "nonlocal",
    "x: int: str",
    "match x:\n    case",
    "try:\n    pass",
    "else:\n    pass",
    "x = yield = 1",
    "(x for x in)",
    "[x, y for x in z]",
    "{**x for x in y}",
    "print(",
    ")",
    "]",
    "}",
    "\\ x",
    "x \\ y",
    "\u00a0x = 1",
    "x = 1 \u2028 y",
    "x = \u201chello\u201d",
    "\ufeffx\ufeff = 1",
    "x = 1;;",
    ":=",
    "x := 1",
    "...=1",
)
NOT_A_NOTEBOOK = (
    '["cuda"]',
    '"cuda"',
    '{"cells": 3, "x": "cuda"}',
    "NaN cuda",
    '{"cells": {"cuda": 1}}',
    '{"cells": ["cuda"]}',
    '{"cells": [3, "cuda"]}',
    '{"cells": [{"cell_type": "code", "source": 3, "x": "cuda"}]}',
    '{"cells": [{"source": ["x.cuda()"]}]}',
    '{"cells": [{"cell_type": "code", "source": [3, "cuda"]}]}',
    '{"cells": [null, "cuda"]}',
    "{cuda}",
    "{'cells': 'cuda'}",
    '{"cells": [{"cell_type": "code", "source": {"a": "cuda"}}]}',
    "cuda",
    '{"cells": []} cuda',
    "<html>cuda</html>",
)


def files() -> dict[str, bytes]:
    """Every malformed file by its name."""
    made: dict[str, bytes] = {}
    code = CODE.encode()
    for i, text in enumerate(PYTHON_2):
        made[f"python2_{i}.py"] = f"{CODE}{text}\n".encode()
    for i, text in enumerate(SYNTAX):
        made[f"syntax_{i}.py"] = f"{CODE}{text}\n".encode()
    for i in range(40):  # a byte that is no UTF-8, anywhere
        at = i * len(code) // 40
        made[f"encoding_{i}.py"] = code[:at] + bytes([0x80 + 3 * i]) + code[at:]
    for i, name in enumerate(("klingon", "utf-99", "hex", "base64", "rot13", "undefined", "utf_16", "utf-7z")):
        made[f"declared_{i}.py"] = f"# coding: {name}\n{CODE}x = 'é'\n".encode()
    for i, encoding in enumerate(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")):
        made[f"wide_{i}.py"] = CODE.encode(encoding)
        made[f"wide_{i}.ipynb"] = NOTEBOOK.encode(encoding)
        made[f"wide_{i}.sh"] = b"" + "CUDA_VISIBLE_DEVICES=0 python train.py\n".encode(encoding)
    for kind in ("sh", "yaml", "json", "toml", "dockerfile", "cu", "cpp", "ipynb", "h"):
        for i in range(4):
            made[f"bytes_{i}.{kind}"] = b"CUDA_VISIBLE_DEVICES=0 torch.cuda \xff" + bytes([0xC0 + i, 0x20, 0xFE])
    made["requirements-bytes.txt"] = b"torch==2.1+cu121 # \xff\xfe\xfd cuda\n"
    for i in range(20):  # what is no text at all, with the word in it
        made[f"binary_{i}.py"] = bytes((7 * i + 13 * j) % 256 for j in range(256 + i)) + code
    for i, (start, end) in enumerate((("(", ")"), ("[", "]"), ("{", "}"), ("f(", ")"), ("-", ""), ("not ", ""))):
        for depth in (1_000, 20_000) if end else (20_000, 30_000):
            made[f"deep_{i}_{depth}.py"] = f"{CODE}x = {start * depth}1{end * depth}\n".encode()
    for depth in (101, 400):
        body = "".join(f"{' ' * level}if x:\n" for level in range(depth))
        made[f"indented_{depth}.py"] = f"{CODE}{body}{' ' * depth}pass\n".encode()
    made["huge.py"] = code + b"x = '" + b"a" * (9 << 20) + b"'\n"
    made["huge.ipynb"] = NOTEBOOK.replace("Training", "a" * (9 << 20)).encode()
    for i in range(40):  # a notebook that was cut short
        made[f"cut_{i}.ipynb"] = NOTEBOOK.encode()[: len(NOTEBOOK) - 1 - i * (len(NOTEBOOK) - 150) // 40]
    for i in range(20):  # a script that was cut short, inside of a string or a bracket
        made[f"cut_{i}.py"] = f"{CODE}x = f('{'abc, ' * i}".encode()
    for i, text in enumerate(NOT_A_NOTEBOOK):
        made[f"notebook_{i}.ipynb"] = text.encode()
    for i, text in enumerate((*PYTHON_2, *SYNTAX[:12])):
        cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": [f"model.cuda()\n{text}\n"]}
        made[f"cell_{i}.ipynb"] = json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5}).encode()
    made["deep.ipynb"] = b'{"cells": ' + b"[" * 100_000 + b'"cuda"' + b"]" * 100_000 + b"}"
    return made


NO_FILES = ("itself.py", "one.py", "other.py", "nowhere.ipynb")


def write(folder: Path) -> None:
    """Write them all, with links in loops, a link to nowhere and a pipe."""
    for name, data in files().items():
        (folder / name).write_bytes(data)
    (folder / "itself.py").symlink_to("itself.py")
    (folder / "one.py").symlink_to("other.py")
    (folder / "other.py").symlink_to("one.py")
    (folder / "nowhere.ipynb").symlink_to("gone.ipynb")
    os.mkfifo(folder / "pipe.py")
    (folder / "inner").mkdir()
    (folder / "inner" / "round").symlink_to("..")  # no file, and not followed
