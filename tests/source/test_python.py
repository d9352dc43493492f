"""Names mean what Python would make of them, and places are where the text is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npukit.source import Edit, PythonFile, apply_edits, find, per_file, read
from npukit.source.nodes import children, inside, statements


def last_name(text: str, path: Path = Path("a.py")) -> str | None:
    """What the last expression of a program resolves to."""
    file = PythonFile(path, text)
    statement = [node for node in file.nodes if isinstance(node, ast.Expr)][-1]
    return file.resolve(statement.value)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("import torch\ntorch.cuda.x", "torch.cuda.x"),
        ("import torch as t\nt.cuda", "torch.cuda"),
        ("import torch.cuda.amp\ntorch.cuda.amp.x", "torch.cuda.amp.x"),
        ("import torch.cuda.amp as a\na.x", "torch.cuda.amp.x"),
        ("from torch import cuda as c\nc.x", "torch.cuda.x"),
        ("from torch.cuda import *\nsynchronize", "torch.cuda.synchronize"),
        ("import torch\nt = torch\nu = t.cuda\nu.x", "torch.cuda.x"),
        ("import torch\ndef f():\n    torch.x", "torch.x"),
        ("def f():\n    import torch\n    def g():\n        torch.x", "torch.x"),
        ("import torch\ndef f(torch):\n    torch.x", None),
        ("import torch\nclass A:\n    torch = 1\n    def f(self):\n        torch.x", "torch.x"),
        ("class A:\n    import torch\n    def f(self):\n        torch.x", None),
        ("def f():\n    global t\n    import torch as t\nt.x", "torch.x"),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None\ntorch.x", "torch.x"),
        ("a = b\nb = a\na.x", None),
        ("x = f()\nx.y", None),
        ("unknown.x", None),
    ],
)
def test_names(text: str, meaning: str | None) -> None:
    assert last_name(text) == meaning


def test_names_of_other_files(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .compat import th\n")
    (package / "compat.py").write_text("import torch as th\nfrom .circle import other\n")
    (package / "circle.py").write_text("from .compat import other\n")
    assert last_name("from .compat import th as t\nt.x", package / "a.py") == "torch.x"
    assert last_name("from . import th\nth.x", package / "a.py") == "torch.x"
    assert last_name("from package.compat import th\nth.x", tmp_path / "a.py") == "torch.x"
    assert last_name("from package import *\nth.x", tmp_path / "a.py") == "torch.x"
    last_name("from .circle import other\nother.x", package / "a.py")  # ends


def test_scopes_and_parents() -> None:
    text = "def f(a=x, *, b, c=2):\n    x = lambda y: y\n    class C:\n        x = {**a, 1: x}\n    return x\nx = 1\n"
    file = PythonFile(Path("a.py"), text)
    names = [name for name in file.by_type[ast.Name] if isinstance(name, ast.Name) and name.id == "x"]
    scopes = {name.lineno: type(file.names.lookup(name)[0]).__name__ for name in names}
    assert scopes == {1: "Module", 2: "FunctionDef", 4: "ClassDef", 5: "FunctionDef", 6: "Module"}
    assert all(file.parent(child) is node for node in file.nodes for child in children(node))
    assert set(file.nodes) == set(inside(file.tree)) and None not in file.names.parents


def test_places_count_characters() -> None:
    file = PythonFile(Path("a.py"), "é = 'ß'; x.cuda()\r\nf(\r\n  y\r\n)\r\n")
    call = next(node for node in file.nodes if isinstance(node, ast.Attribute))
    assert file.source(call) == "x.cuda" and (file.place(call).line, file.place(call).column) == (1, 10)
    assert file.source(file.tree.body[2]) == "f(\r\n  y\r\n)"
    assert file.line_of(call) == "é = 'ß'; x.cuda()"


def test_uses_are_those_of_the_same_variable() -> None:
    file = PythonFile(Path("a.py"), "d = 1\ndef f(d):\n    return d\ndef g():\n    return d\nprint(d)\n")
    first = next(node for node in file.nodes if isinstance(node, ast.Name))
    assert [use.lineno for use in file.uses(first)] == [5, 6]


def test_edits() -> None:
    assert (
        apply_edits("abc", [Edit(1, 2, "X"), Edit(1, 2, "X"), Edit(3, 3, "!"), Edit(0, 0, "1"), Edit(0, 0, "2")])
        == "12aXc!"
    )
    with pytest.raises(ValueError, match="overlap"):
        apply_edits("abc", [Edit(0, 2, ""), Edit(1, 3, "")])


def test_find_skips_hidden_installed_and_linked(tmp_path: Path) -> None:
    for name in ("a.py", ".git/b.py", "venv/c.py", "d/Dockerfile.gpu", "d/requirements-dev.txt", "d/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    names = [str(file.relative_to(tmp_path)) for file in find([tmp_path, tmp_path / "a.py"])]
    assert names == ["a.py", "d/Dockerfile.gpu", "d/requirements-dev.txt"]


def test_a_file_is_parsed_once_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("import torch")
    first = read(path).python
    assert read(path).python is first
    path.write_text("import numpy")
    now = read(path).python
    assert now is not None
    assert now.imported == {"numpy"}


def test_an_answer_about_a_file_is_kept_with_it() -> None:
    asked = []

    @per_file
    def lines(file: PythonFile, more: int) -> int:
        asked.append(file)
        return file.text.count("\n") + more

    one, other = (PythonFile(Path("a.py"), text) for text in ("x = 1\n", "x = 1\ny = 2\n"))
    assert [lines(one, 0), lines(other, 0), lines(one, 0), lines(one, 1)] == [1, 2, 1, 2]
    assert asked == [one, other, one]


def test_statements_are_those_of_all_blocks_and_no_expressions() -> None:
    tree = ast.parse("try:\n    f = lambda: 1\nexcept E:\n    pass\nmatch x:\n    case 1:\n        g()\n")
    assert [type(node).__name__ for node in statements(tree)] == ["Try", "Assign", "Pass", "Match", "Expr"]
