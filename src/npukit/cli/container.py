"""npukit container"""

from __future__ import annotations

import os
import shutil
from enum import Enum
from typing import Annotated

import typer

from npukit.errors import NpukitError


class Format(str, Enum):
    docker = "docker"
    compose = "compose"
    k8s = "k8s"


def container(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]", help="What runs in it; a shell.", show_default=False)
    ] = None,
    image: Annotated[str, typer.Option(help="With CANN inside; Ascend's own from quay.io unless you say.")] = "",
    devices: Annotated[str, typer.Option(help="Cards, such as 0,1 or 0-7; all of this machine unless you say.")] = "",
    format: Annotated[Format, typer.Option(help="A command, a compose file or a Kubernetes job.")] = Format.docker,
    run: Annotated[bool, typer.Option("--run", help="Start it instead of printing the command.")] = False,
) -> None:
    """Print what starts a container that sees this machine's NPUs: devices, driver, shared memory."""
    from npukit.launch import container as containers

    cards = containers.parse_cards(devices) if devices else ()
    plan = containers.plan_container(image or containers.IMAGE, cards, command or ())
    if run and (format is not Format.docker or plan.notes):
        why = "this machine has no card" if plan.notes else f"--run starts docker, not {format.value}"
        raise NpukitError(f"Nothing was started: {why}; leave --run away.")
    if run:
        if not shutil.which("docker"):
            raise NpukitError("There is no docker on this machine: install it, or leave --run away.")
        argv = containers.docker(plan)
        os.execvp(argv[0], argv)
    render = {
        Format.docker: containers.docker_text,
        Format.compose: containers.compose,
        Format.k8s: containers.kubernetes,
    }
    print(render[format](plan).rstrip())
