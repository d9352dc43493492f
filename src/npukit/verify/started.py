"""Makes the processes of a launcher comparable: torchrun, accelerate, deepspeed, a shell script or another one.

The launcher itself is not changed. In every Python process below it, `begin` checks whether the process runs a script
or module of the project, and prepares it as `observe` prepares the process of `python SCRIPT`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npukit.launch import script
from npukit.launch.devices import SIMULATED_TRACE
from npukit.launch.run import own_first

VARIABLE = "NPUKIT_VERIFY"
_FIRST = Path(__file__).with_name("first")
_WITH_VALUE = ("-W", "-X")


def observed(environment: Mapping[str, str], project: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a launcher that makes its Python processes of `project` comparable.

    >>> subprocess.run(["torchrun", "train.py"], cwd=project, env=observed(os.environ, project, options))
    """
    programs = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), environment.get("PATH")]))
    inherited = {**own_first(project, environment), "PATH": programs}
    # Otherwise the launcher too would write a trace, after its ranks.
    handed = {**options, "project": str(project), "trace": inherited.pop(SIMULATED_TRACE, "")}
    inherited["PYTHONPATH"] = os.pathsep.join([str(_FIRST), inherited["PYTHONPATH"]])
    return {**inherited, VARIABLE: json.dumps(handed)}


def begin() -> None:
    """In a process of the project, fix seeds and random numbers and record what it computes."""
    if not (given := os.environ.get(VARIABLE)):
        return
    options = json.loads(given)
    if not is_of_project(main_of(sys.orig_argv[1:]), Path(options["project"])):
        return
    from npukit.verify.observe import prepare

    if os.environ.get("RANK", "0") != "0":
        options["watch"] = ""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only the output of the first rank is compared
    elif options["trace"]:
        os.environ[SIMULATED_TRACE] = f"{options['trace']}.{os.getpid()}"
    script.hide_torch_npu()
    prepare(options)
    script.call_hook()
    os.environ.pop(script.HOOK, None)  # `npukit run` would call it again


def main_of(arguments: Sequence[str]) -> list[str]:
    """The script, or -m and the module, in Python's arguments; empty if there is neither.

    >>> main_of(["-u", "-W", "ignore", "train.py", "--steps", "5"]), main_of(["-m", "pkg.train"])
    (['train.py'], ['-m', 'pkg.train'])
    """
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m":
            ours = rest[:1] == [script.__name__]  # a script started by `npukit run`
            return main_of([word for word in rest[1:] if word != "--auto"]) if ours else ["-m", *rest[:1]]
        if option == "-c":
            return []
        if option in _WITH_VALUE:
            rest = rest[1:]
    return rest[:1]


def is_of_project(main: Sequence[str], project: Path) -> bool:
    """Whether a script or module is in a project.

    >>> is_of_project(["train.py"], Path.cwd()), is_of_project(["-m", "torch.distributed.run"], Path.cwd())
    (True, False)
    """
    if len(main) == 1:
        return Path(main[0]).resolve().is_relative_to(project.resolve())
    if not main:
        return False
    places = [folder.joinpath(*main[1].split(".")) for folder in (project, project / "src")]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)
