"""Commands that start a program: Python itself, a launcher such as torchrun, or a shell script."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from npukit.errors import NpukitError

_SHELLS = ("bash", "sh", "zsh")
# Modules that only start other processes.
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed", "npukit")
_COUNT = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus|nproc|devices)(?:=|\s+)(\d+)\b")


def python_arguments(command: Sequence[str]) -> list[str] | None:
    """Python's arguments, if a command is Python with a script or module that is not a launcher.

    >>> python_arguments(["python", "train.py", "--steps", "5"]), python_arguments(["torchrun", "train.py"])
    (['train.py', '--steps', '5'], None)
    """
    if not command or not re.fullmatch(r"python[\d.]*", Path(command[0]).name):
        return None
    arguments = list(command[1:])
    return None if arguments[:1] == ["-m"] and arguments[1:2] and arguments[1] in _LAUNCHERS else arguments


def check_command(command: Sequence[str], folder: Path) -> None:
    """Refuse a command that cannot be run in a project's folder.

    >>> check_command(["torchrun", "--nproc_per_node=2", "train.py"], Path("project"))
    """
    if not command:
        raise NpukitError("Write the command after `--`, as in `-- python train.py --steps 20` or `-- bash run.sh`.")
    arguments = python_arguments(command)
    if arguments is not None and (arguments in ([], ["-m"]) or re.match("-(?!m$)", arguments[0])):
        raise NpukitError(
            "Put a script, or -m and a module, right after `python`: Python's own options are not supported."
        )
    if arguments is None and not _program(command[0], folder):
        raise NpukitError(f"There is no program {command[0]}: give a command that runs in {folder}.")
    script = _script(command if arguments is None else arguments, arguments is not None)
    if script and not (folder / script).is_file():
        raise NpukitError(f"There is no {script} in {folder}: give the path of the script relative to the project.")


def devices_asked(command: Sequence[str], folder: Path) -> int:
    """The number of devices in a launcher's options, also inside a shell script; 1 if there are none.

    >>> devices_asked(["torchrun", "--nproc_per_node=2", "train.py"], Path("project"))
    2
    """
    text = " ".join(command)
    if python_arguments(command) is not None:
        return 1
    if (script := _script(command, False)) and (folder / script).is_file():
        text += "\n" + (folder / script).read_text(encoding="utf-8", errors="replace")
    return max((int(number) for number in _COUNT.findall(text)), default=1) or 1


def is_shell_script(path: Path) -> bool:
    """Whether a file is a shell script, by its name or first line.

    >>> is_shell_script(Path("run.sh"))
    True
    """
    if path.suffix in (".sh", ".bash"):
        return True
    try:
        with path.open("rb") as file:
            first = file.readline(100)
    except OSError:
        return False
    return first.startswith(b"#!") and first.split(b"/")[-1].split()[-1:][0].decode(errors="replace") in _SHELLS


def _script(command: Sequence[str], is_python: bool) -> str:
    """The project's Python or shell script in a command; empty if it is unknown."""
    if is_python:
        return "" if command[0] == "-m" else command[0]
    if Path(command[0]).name in _SHELLS:
        return next((word for word in command[1:] if not word.startswith("-")), "") if "-c" not in command else ""
    return command[0] if os.sep in command[0] and not Path(command[0]).is_absolute() else ""


def _program(name: str, folder: Path) -> bool:
    if os.sep in name:
        return os.access(folder / name, os.X_OK)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which(name, path=path) is not None
