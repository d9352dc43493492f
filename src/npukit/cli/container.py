"""npukit container"""

from __future__ import annotations

import os
import shutil
from typing import Annotated, Literal

import typer

from npukit.cli.help import DEVICES, OUTPUT
from npukit.cli.options import JsonOption
from npukit.cli.results import show
from npukit.errors import NpukitError

Kind = Literal["docker", "compose", "k8s"]


def container(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...", help="Command to run in the container; a shell by default.", show_default=False
        ),
    ] = None,
    image: Annotated[
        str, typer.Option(show_default="Ascend's own, from quay.io", help="Image that contains CANN.")
    ] = "",
    device: Annotated[
        Literal["npu", "sim"],
        typer.Option(rich_help_panel=DEVICES, help="npu: with NPUs of this machine; sim: with simulated ones."),
    ] = "npu",
    visible_devices: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS",
            show_default="all",
            rich_help_panel=DEVICES,
            help="NPUs that the container can use, such as 0,1 or 0-7.",
        ),
    ] = "",
    format: Annotated[
        Kind, typer.Option(rich_help_panel=OUTPUT, help="A docker command, a compose file or a Kubernetes job.")
    ] = "docker",
    run: Annotated[bool, typer.Option("--run", help="Start the container instead of printing the command.")] = False,
    json: JsonOption = False,
) -> None:
    """Print the command that starts a container with the NPUs.

    Examples:
        npukit container  # a shell with all NPUs of this machine
        npukit container --visible-devices 0-3 python train.py
        npukit container --device sim --format compose  # simulated NPUs, for any machine
    """
    from npukit.launch import container as containers

    if device == "sim" and visible_devices:
        raise NpukitError(
            "--visible-devices chooses real NPUs: the command in the container chooses how many are simulated."
        )
    if device == "sim":
        plan = containers.plan_simulated(image or containers.SIMULATED_IMAGE, command or ())
    else:
        numbers = containers.parse_numbers(visible_devices) if visible_devices else ()
        plan = containers.plan_container(image or containers.IMAGE, numbers, command or ())
    if run and json:
        raise NpukitError("--run starts the container and --json prints how: choose one.")
    if run and format != "docker":
        raise NpukitError(f"--run starts docker, not {format}: leave out --run.")
    if run and plan.for_another_machine:
        raise NpukitError("This machine has no NPU to give to a container: leave out --run.")
    if run:
        if not shutil.which("docker"):
            raise NpukitError("There is no docker on this machine: install it, or leave out --run.")
        argv = containers.docker(plan)
        os.execvp(argv[0], argv)
    render = {"docker": containers.docker_text, "compose": containers.compose, "k8s": containers.kubernetes}
    text = render[format](plan).rstrip()
    show({"format": format, "text": text, "argv": containers.docker(plan), "container": plan}, text, json)
