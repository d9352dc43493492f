"""A project's git repository: worktrees and commits that leave the user's branch, index and files alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError
from npukit.migrate.git import git, has_uncommitted_changes, top_of

_SOMEBODY = ("-c", "user.name=npukit", "-c", "user.email=npukit@localhost")


@dataclass(frozen=True)
class Repository:
    """The repository that contains a project."""

    top: Path
    project: Path  # the project's path in the repository

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
        top = top_of(project)
        if top is None:
            raise NpukitError(f"{project} is not a git repository: run `git init`, `git add .` and `git commit` first.")
        repository = cls(top, project.resolve().relative_to(top))
        try:
            repository.head()
        except NpukitError as error:
            raise NpukitError(f"{project} has no commit that git can read; run `git commit` first. {error}") from None
        return repository

    def head(self, ref: str = "HEAD") -> str:
        return git(self.top, "rev-parse", "--verify", f"{ref}^{{commit}}").strip()

    def has_branch(self, name: str) -> bool:
        return bool(git(self.top, "branch", "--list", name).strip())

    def is_dirty(self) -> bool:
        """Whether the project has uncommitted changes or untracked files."""
        return has_uncommitted_changes(self.top / self.project, untracked=True)

    def add_worktree(self, folder: Path, commit: str, branch: str = "") -> None:
        """Check out a commit into a folder, optionally as a new branch."""
        self.remove_worktree(folder)
        how = ("-b", branch) if branch else ("--detach",)
        git(self.top, "worktree", "add", "--quiet", *how, str(folder), commit)

    def remove_worktree(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        git(self.top, "worktree", "prune")

    def delete_branch(self, name: str) -> None:
        git(self.top, "branch", "-D", "--quiet", name)


def commit(worktree: Path, files: Sequence[Path], message: str) -> str:
    """Commit these files of a worktree, and nothing else.

    >>> commit(Path("worktree"), [Path("worktree/train.py")], "Move tensors with .to(device)")
    """
    git(worktree, "add", "--", *map(str, files))
    git(worktree, *_author(worktree), "commit", "--quiet", "--no-verify", "--message", message)
    return git(worktree, "rev-parse", "--short", "HEAD").strip()


def _author(worktree: Path) -> tuple[str, ...]:
    try:
        git(worktree, "var", "GIT_AUTHOR_IDENT")
    except NpukitError:
        return _SOMEBODY
    return ()
