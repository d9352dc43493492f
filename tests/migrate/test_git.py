"""No verb that looks at a repository runs a program that the repository names, in whatever place it names it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import npukit
from npukit.errors import NpukitError
from npukit.migrate.git import git, has_uncommitted_changes, top_of
from npukit.port import port as port_module
from npukit.port.imports import ImportCheck
from npukit.port.port import port

CUDA = "import torch\nx = torch.ones(1).cuda()\n"
HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit"),
    *("post-index-change", "post-merge", "post-rewrite", "pre-auto-gc", "pre-commit", "pre-merge-commit"),
    *("pre-rebase", "prepare-commit-msg", "reference-transaction", "update"),
)


def plain_git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def hooks(git_folder: Path, program: Path) -> None:
    (git_folder / "hooks").mkdir(exist_ok=True)
    for name in HOOKS:
        (git_folder / "hooks" / name).unlink(missing_ok=True)
        (git_folder / "hooks" / name).symlink_to(program)


def settings(git_folder: Path, program: Path) -> None:
    """Every setting of git that names a program and that a command might come to."""
    with (git_folder / "config").open("a") as file:
        file.write(
            f"[core]\n fsmonitor = {program}\n pager = {program}\n editor = {program}\n sshCommand = {program}\n"
            f"[diff]\n external = {program}\n[gpg]\n program = {program}\n[commit]\n gpgsign = true\n"
            f"[gc]\n auto = 1\n recentObjectsHook = {program}\n[submodule]\n recurse = true\n"
            f'[filter "a=b"]\n clean = {program}\n smudge = {program}\n required = true\n'
            f'[filter "long"]\n process = {program}\n required = true\n'
        )


def promisor(git_folder: Path, program: Path) -> None:
    """A partial clone fetches objects that are missing, here by the program."""
    with (git_folder / "config").open("a") as file:
        file.write(
            "[core]\n repositoryformatversion = 1\n[extensions]\n partialClone = origin\n"
            f'[remote "origin"]\n url = {git_folder.parent}\n promisor = true\n uploadpack = {program}\n'
        )
    for folder in (git_folder / "objects").glob("??"):
        shutil.rmtree(folder)


def embedded(git_folder: Path, program: Path) -> None:
    """An ordinary folder of the project that is also a bare repository whose work tree is itself."""
    inside = git_folder.parent / "src"
    plain_git(git_folder.parent, "init", "-q", "--bare", str(inside))
    with (inside / "config").open("a") as file:
        file.write("[core]\n bare = false\n worktree = .\n")
    plain_git(git_folder.parent, "--git-dir", str(inside), "--work-tree", str(inside), "add", "a.py")
    settings(inside, program)
    hooks(inside, program)


def submodule(git_folder: Path, program: Path) -> None:
    other = git_folder.parents[1] / "other"
    other.mkdir()
    (other / "b.py").write_text("b = 1\n")
    (other / ".gitattributes").write_text("* filter=a=b\n")
    plain_git(other, "init", "-q")
    plain_git(other, "add", ".")
    plain_git(other, "commit", "-qm", "first")
    plain_git(git_folder.parent, "submodule", "add", "-q", str(other), "sub")
    plain_git(git_folder.parent, "commit", "-qm", "submodule")
    own = git_folder / "modules" / "sub"
    hooks(own, program)
    settings(own, program)
    (git_folder.parent / "sub" / "b.py").write_text("b = 2\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose files have to be read again to know whether they changed."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text(CUDA)
    (root / "c.txt").write_text("c\n")
    (root / ".gitattributes").write_text("*.py filter=a=b diff=x\n*.txt filter=long\n")
    plain_git(root, "init", "-q", "-b", "work")
    plain_git(root, "add", ".")
    plain_git(root, "commit", "-qm", "first")
    return root


def migrate_in_place(npukit: Callable[..., object], folder: Path) -> None:
    npukit("migrate", folder, "--in-place")


def analyze(npukit: Callable[..., object], folder: Path) -> None:
    npukit("analyze", folder)


def port_it(_: object, folder: Path) -> None:
    port(folder, tests="")


@pytest.mark.parametrize("plant", [hooks, settings, promisor, embedded, submodule])
@pytest.mark.parametrize("verb", [migrate_in_place, analyze, port_it])
def test_no_verb_runs_a_program_of_the_repository(
    verb: Callable[..., None],
    plant: Callable[[Path, Path], None],
    project: Path,
    npukit: Callable[..., object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_module, "check_imports", lambda migration, _: ImportCheck(migration, ()))
    witness, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {witness}\n")
    program.chmod(0o755)
    plant(project / ".git", program)
    for file in (project / "src" / "a.py", project / "c.txt"):
        os.utime(file, (1, 1))
    with contextlib.suppress(NpukitError):  # as for objects that are missing
        verb(npukit, project / "src" if plant is embedded else project)
    assert not witness.exists(), witness.read_text()


def test_what_git_is_asked_is_about_this_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a hook, git's own variables name another repository."""
    monkeypatch.setenv("GIT_DIR", str(project / "nowhere"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.hooksPath=x'")
    assert top_of(project / "src") == project
    assert not has_uncommitted_changes(project / "src") and not has_uncommitted_changes(project, untracked=True)
    (project / "new.txt").write_text("")
    assert has_uncommitted_changes(project, untracked=True) and not has_uncommitted_changes(project)
    (project / "c.txt").write_text("changed\n")
    assert has_uncommitted_changes(project) and not has_uncommitted_changes(project / "src")


def test_a_repository_that_git_cannot_read_is_not_taken_for_a_clean_one(project: Path) -> None:
    (project / ".git" / "index").write_bytes(b"no index")
    with pytest.raises(NpukitError):
        has_uncommitted_changes(project)
    with pytest.raises(NpukitError):
        git(project, "no-such-command")


def test_there_is_one_place_that_calls_git() -> None:
    package = Path(npukit.__file__).parent
    assert [path.name for path in package.rglob("*.py") if '["git"' in path.read_text()] == ["git.py"]


def test_a_repository_of_another_user_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr("npukit.migrate.git._KEPT", ("GIT_TEST_", "GIT_CONFIG_"))
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    with pytest.raises(NpukitError, match=r"another user.*safe\.directory"):
        has_uncommitted_changes(tmp_path)
