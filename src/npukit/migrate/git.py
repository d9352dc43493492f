"""Call git on a repository that nobody trusts: it reads and writes objects, and runs no program of the repository's.

Every call of git in npukit goes through `git`. A repository names programs in many places: hooks, a file-system
monitor, filters in its configuration, submodules with a configuration of their own, a bare repository that hides in an
ordinary folder, and remotes from which missing objects are fetched. All of them are switched off, so that git works on
files as they are stored: a file under Git LFS is its pointer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from npukit.errors import NpukitError

_SECONDS = 600
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "submodule.recurse": "false",
    "safe.bareRepository": "explicit",
    "commit.gpgsign": "false",
    "gc.auto": "0",  # it may run gc.recentObjectsHook
    "maintenance.auto": "false",
}
_VARIABLES = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",  # since git 2.39.4
    "GIT_ALLOW_PROTOCOL": "",  # the same for older ones: no transport may be used
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_EDITOR": "false",
}
# What a user may have set for every repository. Others, such as GIT_DIR inside a hook, are about another repository.
_KEPT = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_EXEC_PATH", "GIT_CONFIG_")


def top_of(folder: Path) -> Path | None:
    """The top of the repository that a folder lies in: the nearest one with a `.git`.

    >>> top_of(Path("nanoGPT/data"))
    PosixPath('/home/me/nanoGPT')
    """
    here = folder.resolve()
    return next((candidate for candidate in (here, *here.parents) if (candidate / ".git").exists()), None)


def git(folder: Path, *arguments: str) -> str:
    """What git prints for a command in the top folder of the repository that a folder lies in.

    >>> git(Path("nanoGPT"), "rev-parse", "HEAD")
    '3adf61e154c3fe3fca428ad6bc3818b27a3b8291\\n'
    """
    top = top_of(folder)
    if top is None:
        raise NpukitError(f"{folder} is in no git repository: run `git init`, `git add .` and `git commit` first.")
    filters = _run(top, {}, "config", "--null", "--name-only", "--get-regexp", _FILTERS)
    names = os.fsdecode(filters.stdout).split("\0")
    done = _run(top, {name: "false" if name.endswith(".required") else "" for name in names if name}, *arguments)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason was given"]
        if any("dubious ownership" in line for line in lines):
            raise NpukitError(
                f"{top} belongs to another user, so git refuses to read it: if you trust that user, run "
                f"`git config --global --add safe.directory {top}`."
            )
        reason = next((line for line in lines if line.startswith("fatal: ")), lines[-1])
        raise NpukitError(f"git failed in {top}: {reason}")
    return os.fsdecode(done.stdout)


def has_uncommitted_changes(folder: Path, untracked: bool = False) -> bool:
    """Whether files of a folder differ from the last commit; False where there is no git or no repository.

    >>> has_uncommitted_changes(Path("project"))
    False
    """
    if top_of(folder) is None or shutil.which("git") is None:
        return False
    files = f"--untracked-files={'all' if untracked else 'no'}"
    return bool(git(folder, "status", "--porcelain", files, "--ignore-submodules=all", "--", str(folder.resolve())))


def _run(top: Path, settings: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "--no-pager", "-C", str(top), *arguments]
    environment = _environment(top, {**settings, **_SETTINGS})
    try:
        return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise NpukitError(f"git did not end within {_SECONDS} s in {top}.") from None


def _environment(top: Path, settings: dict[str, str]) -> dict[str, str]:
    """The environment of a call: variables carry the settings, since a filter's name may contain a `=`."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT)}
    mine.pop("GIT_CONFIG_PARAMETERS", None)  # it would overrule the settings
    before = mine.get("GIT_CONFIG_COUNT", "0")
    first = int(before) if before.isdecimal() else 0
    for number, (name, value) in enumerate(settings.items(), first):
        mine |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return {
        **mine,
        **_VARIABLES,
        "GIT_CONFIG_COUNT": str(first + len(settings)),
        "GIT_CEILING_DIRECTORIES": str(top.parent),  # this repository, or none
        "LC_ALL": "C",
    }
