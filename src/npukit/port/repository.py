"""A project's git repository: worktrees and commits that leave the user's branch, index and files alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError

# Hooks and signatures are the user's; these commits are made by a program.
_SETTINGS = ("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false")
_SOMEBODY = ("-c", "user.name=npukit", "-c", "user.email=npukit@localhost")


@dataclass(frozen=True)
class Repository:
    """The repository that a project is, or lies in."""

    top: Path
    project: Path  # relative to the top

    @classmethod
    def of(cls, project: Path) -> Repository:
        """
        >>> Repository.of(Path("nanoGPT")).head()
        '3adf61e154c3fe3fca428ad6bc3818b27a3b8291'
        """
        if not project.is_dir():
            raise NpukitError(f"There is no folder {project}: name the folder of a project.")
        if shutil.which("git") is None:
            raise NpukitError("`npukit port` works on a git branch, and git is not installed: install it first.")
        try:
            top = Path(_git(project, "rev-parse", "--show-toplevel").strip())
            _git(project, "rev-parse", "--verify", "HEAD^{commit}")
        except NpukitError:
            raise NpukitError(
                f"{project} is no git repository with a commit: run `git init`, `git add .` and `git commit` first."
            ) from None
        return cls(top, project.resolve().relative_to(top.resolve()))

    def head(self, ref: str = "HEAD") -> str:
        return _git(self.top, "rev-parse", "--verify", f"{ref}^{{commit}}").strip()

    def has_branch(self, name: str) -> bool:
        return bool(_git(self.top, "branch", "--list", name).strip())

    def is_dirty(self) -> bool:
        """Whether files of the project differ from the last commit, or are not in it."""
        where = str(self.project)
        return bool(_git(self.top, "status", "--porcelain", "--", where, ":!.npukit").strip())

    def add_worktree(self, folder: Path, commit: str, branch: str = "") -> None:
        """Check out a commit into a folder, as a new branch or as none."""
        self.remove_worktree(folder)
        how = ("-b", branch) if branch else ("--detach",)
        _git(self.top, *_SETTINGS, "worktree", "add", "--quiet", *how, str(folder), commit)

    def remove_worktree(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        _git(self.top, "worktree", "prune")

    def delete_branch(self, name: str) -> None:
        _git(self.top, "branch", "-D", "--quiet", name)


def commit(worktree: Path, files: Sequence[Path], message: str) -> str:
    """Commit these files of a worktree, and nothing else.

    >>> commit(Path("worktree"), [Path("worktree/train.py")], "Move tensors with .to(device)")
    """
    _git(worktree, "add", "--", *map(str, files))
    _git(worktree, *_SETTINGS, *_author(worktree), "commit", "--quiet", "--no-verify", "--message", message)
    return _git(worktree, "rev-parse", "--short", "HEAD").strip()


def _author(worktree: Path) -> tuple[str, ...]:
    try:
        _git(worktree, "var", "GIT_AUTHOR_IDENT")
    except NpukitError:
        return _SOMEBODY
    return ()


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason was given"]
        raise NpukitError(f"git failed in {folder}: {said[-1]}")
    return done.stdout
