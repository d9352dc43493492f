"""Ask git about a project without running what the project's own configuration names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_SECONDS = 60
_FILTERS = r"^filter\..*\.(clean|process|required)$"


def has_uncommitted_changes(root: Path) -> bool:
    """Whether files that git knows were changed; False where there is no git or no repository.

    >>> has_uncommitted_changes(Path("project"))
    False
    """
    status = _ask(root, _harmless(root), "status", "--porcelain", "--untracked-files=no", "--", ".")
    return bool(status.strip())


def _harmless(root: Path) -> dict[str, str]:
    """Variables that switch off the programs by which a repository may have its files watched or filtered."""
    names = _ask(root, {}, "config", "--null", "--name-only", "--get-regexp", _FILTERS).split("\0")
    settings = {name: "false" if name.endswith(".required") else "" for name in names if name}
    settings["core.fsmonitor"] = "false"
    before = int(os.environ.get("GIT_CONFIG_COUNT", "0"))
    variables = {"GIT_CONFIG_COUNT": str(before + len(settings))}
    for number, (name, value) in enumerate(settings.items(), before):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _ask(root: Path, variables: dict[str, str], *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    environment = {**os.environ, **variables}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(result.stdout) if result.returncode == 0 else ""
