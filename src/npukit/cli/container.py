"""npukit container"""

from __future__ import annotations

import os
import shutil
from enum import Enum
from typing import Annotated

import typer

from npukit.errors import NpukitError


class Form(str, Enum):
    docker = "docker"
    compose = "compose"
    k8s = "k8s"


def container(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]", help="Command to run in it; a shell by default.", show_default=False),
    ] = None,
    image: Annotated[
        str, typer.Option(help="Image with CANN inside; Ascend's own from quay.io by default.", show_default=False)
    ] = "",
    cards: Annotated[
        str, typer.Option(help="Card numbers, such as 0,1 or 0-7; all cards by default.", show_default=False)
    ] = "",
    form: Annotated[
        Form, typer.Option("--as", help="Print a docker command, a compose file or a Kubernetes job.")
    ] = Form.docker,
    sim: Annotated[bool, typer.Option("--sim", help="A container with simulated NPUs, for any machine.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Start the container instead of printing the command.")] = False,
) -> None:
    """Print the command that starts a container with the NPUs."""
    from npukit.launch import container as containers

    if sim and cards:
        raise NpukitError("--cards chooses real cards: the command in the container chooses how many are simulated.")
    if sim:
        plan = containers.plan_simulated(image or containers.SIMULATED_IMAGE, command or ())
    else:
        numbers = containers.parse_cards(cards) if cards else ()
        plan = containers.plan_container(image or containers.IMAGE, numbers, command or ())
    if run and form is not Form.docker:
        raise NpukitError(f"--run starts docker, not {form.value}: leave out --run.")
    if run and plan.for_another_machine:
        raise NpukitError("This machine has no NPU to give to a container: leave out --run.")
    if run:
        if not shutil.which("docker"):
            raise NpukitError("There is no docker on this machine: install it, or leave out --run.")
        argv = containers.docker(plan)
        os.execvp(argv[0], argv)
    render = {
        Form.docker: containers.docker_text,
        Form.compose: containers.compose,
        Form.k8s: containers.kubernetes,
    }
    print(render[form](plan).rstrip())
