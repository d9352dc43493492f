"""What a migration touched is imported before and after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npukit.launch.devices import choose
from npukit.migrate.change import Change
from npukit.migrate.migration import Migration, migrate
from npukit.port import imports
from npukit.port.check import Ran, check, is_no_worse
from npukit.port.imports import check_imports, import_all


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_how_files_import(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/good.py": "import helper_of_script\nfrom . import sub",
        "pkg/sub.py": "",
        "helper_of_script.py": "",
        "needs.py": (
            "import not_there.deep as deep\nfrom not_there import Base, register, NUMBER\nfrom abc import ABC\n"
            "class B(ABC, Base): ...\n"
            "@register('x')\nclass A(Base): field: Base[int] | None = None\n"
            "@register\ndef f(): return 1\nassert f() == 1"
        ),
        "wants-arguments.py": "import sys; sys.exit(2)",
        "broken.py": "import pkg.good\n1 / 0",
        "through.py": "import broken",
        "whole/part/__init__.py": "from ..other import x",  # whole has no __init__.py
        "whole/other/__init__.py": "x = 1",
        "whole/part/module.py": "from . import x",
        "whole/alone.py": "from .other import x",
        "optional.py": "try:\n    import not_there\nexcept ImportError:\n    x = 1\nassert x",
    }
    given = {name: () for name in files if name != "pkg/__init__.py"}
    results = import_all(write(tmp_path, files), given, choose("cpu"))
    assert {name: answer.outcome for name, answer in results.items()} == {
        **dict.fromkeys(given, "imports"),
        "wants-arguments.py": "exits",
        "broken.py": "fails",
        "through.py": "fails",
    }
    assert results["needs.py"].stand_ins == ("not_there",) and not results["optional.py"].stand_ins
    assert results["through.py"].origin == "broken.py" and "ZeroDivisionError" in results["through.py"].error


def test_what_files_share_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    write(tmp_path, {"installed/slow.py": f"open({str(log)!r}, 'a').write('x')\nNAME = 1\n"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    files = {f"{name}.py": "import __main__\nfrom slow import NAME\nimport b" for name in "acdefgh"}
    results = import_all(
        write(tmp_path / "project", {**files, "b.py": "1 / 0"}), dict.fromkeys(files, ()), choose("cpu")
    )
    assert {answer.origin for answer in results.values()} == {"b.py"}
    assert len(log.read_text()) == 2  # tried, then done


def test_what_files_share_through_files_of_the_project_is_imported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    write(tmp_path, {"installed/slow.py": f"open({str(log)!r}, 'a').write('x')\nNAME = 1\n"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    own = {"package/__init__.py": "from .way import NAME\n", "package/way.py": "if True:\n    from slow import NAME\n"}
    files = {f"{name}.py": "import package.way" for name in "acdefgh"}
    results = import_all(write(tmp_path / "project", {**files, **own}), dict.fromkeys(files, ()), choose("cpu"))
    assert {answer.outcome for answer in results.values()} == {"imports"}
    assert len(log.read_text()) == 2


def test_what_a_build_would_make_is_stood_in_for(tmp_path: Path) -> None:
    text = (
        "from pkg.version import NUMBER\nimport not_there\nassert not_there.__version__ > '1'\n"
        "from importlib.metadata import version\nassert version('not-there') > '1'"
    )
    folder = write(tmp_path, {"pkg/__init__.py": "", "pkg/built.py": text})
    result = import_all(folder, {"pkg/built.py": ()}, choose("cpu"))["pkg/built.py"]
    assert (result.outcome, result.stand_ins) == ("imports", ("not_there", "pkg.version"))


def test_what_an_installed_package_has_removed_is_not_stood_in_for(tmp_path: Path) -> None:
    files = {"removed.py": "from torch._six import inf", "both.py": "import not_there\nimport torch._six"}
    results = import_all(write(tmp_path, files), dict.fromkeys(files, ()), choose("cpu"))
    assert {result.outcome for result in results.values()} == {"fails"}
    assert results["removed.py"].stand_ins == () and results["both.py"].stand_ins == ("not_there",)
    assert all("torch._six" in result.error for result in results.values())


@pytest.fixture
def migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Migration:
    """A migration of three files, of which one breaks and another imports that one."""
    monkeypatch.setattr(imports, "choose", lambda _: choose("cpu"))
    root = write(tmp_path / "project", {"a.py": "import b", "b.py": "x = 1", "c.py": "y = 1"})
    made = {"a.py": "import b  # new", "b.py": "x = 1 / 0", "c.py": "y = 2"}
    changes = [Change(root / name, (root / name).read_text(), text, "utf-8", ()) for name, text in made.items()]
    return replace(migrate(root), changes=tuple(changes))


def test_a_file_that_no_longer_imports_is_put_back_and_no_other(migration: Migration) -> None:
    checked = check_imports(migration, migration.root)
    assert [change.path.name for change in checked.migration.changes] == ["a.py", "c.py"]
    assert {result.file for result in checked.put_back} == {"b.py"}
    finding = checked.migration.by_hand[-1]
    assert finding.code == "NPK003" and finding.place and finding.place.file.name == "b.py"


def test_a_command_that_passed_must_pass(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npukit.port.check.choose", lambda _: choose("cpu"))
    assert check(migration, migration.root, "python -c 'import a'").good
    assert not check(migration, migration.root, "python -c 'import c; assert c.y == 1'").good
    assert not (migration.root / "tests").exists() and (migration.root / "c.py").read_text() == "y = 1"


def test_tests_that_failed_before_may_fail_after() -> None:
    before = Ran("the CPU", 1, "= 2 failed, 5 passed in 1s =")
    assert is_no_worse(before, Ran("the CPU", 1, "= 2 failed, 5 passed, 1 skipped in 1s ="))
    assert is_no_worse(before, Ran("the CPU", 0, "= 7 passed in 1s ="))
    assert not is_no_worse(before, Ran("the CPU", 1, "= 3 failed, 4 passed in 1s ="))
    assert not is_no_worse(Ran("the CPU", 0, ""), Ran("the CPU", 1, ""))
    assert not is_no_worse(Ran("the CPU", 0, ""), Ran("the CPU", None, ""))
