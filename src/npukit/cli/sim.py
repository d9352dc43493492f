"""npukit sim"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.help import SIMULATED, Command
from npukit.cli.options import CardOption, DevicesOption, JsonOption, TorchNpuOption, file_place
from npukit.cli.results import release_stdout, show
from npukit.cli.run import Compute
from npukit.cli.verbs import new_app
from npukit.facts.cards import DEFAULT_CARD
from npukit.report.result import FILE
from npukit.report.terminal import console

sim = new_app(help="Set up, inspect and use the simulated NPU.")


@sim.command(cls=Command)
def setup(torch_npu: TorchNpuOption = None, json: JsonOption = False) -> None:
    """Download and compile the simulated NPU ahead of first use.

    Examples:
        npukit sim setup
        npukit sim setup --torch-npu 2.7.1  # for another torch_npu, in an environment of its own
    """
    from npukit.simulate import build

    _switch_to(torch_npu)
    built = build.ensure()
    ready = f"The simulated NPU for torch {built.torch_version} is ready in {built.cache}"
    python = f"\nPython with this torch: {sys.executable}" if torch_npu else ""
    show({"torch": built.torch_version, "cache": built.cache, "python": sys.executable}, ready + python, json)


@sim.command(cls=Command)
def bundle(
    file: Annotated[Path, typer.Argument(callback=file_place, help="The .tar file to write.", show_default=False)],
    torch_npu: TorchNpuOption = None,
    json: JsonOption = False,
) -> None:
    """Pack the simulated NPU for a machine without network.

    Examples:
        npukit sim bundle npukit-sim.tar
        npukit sim bundle npukit-sim.tar --torch-npu 2.7.1
    """
    from npukit.simulate.bundle import FOLDER, pack

    _switch_to(torch_npu)
    result = pack(file)
    lines = [
        f"{result.file}: {result.size / 1e6:.0f} MB",
        f"For {result.architecture} with Python {result.python} and torch {result.torch}. Unpack it there, then:",
        f"  python -m pip install --no-index --find-links {FOLDER}/wheels npukit",
        f"  export NPUKIT_CACHE=$PWD/{FOLDER}/cache",
    ]
    show(result, "\n".join(lines), json)


@sim.command(cls=Command)
def env(
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
    compute: Annotated[
        Compute,
        typer.Option(rich_help_panel=SIMULATED, help="With shapes, nothing is computed but memory is counted."),
    ] = "full",
    torch_npu: TorchNpuOption = None,
    json: JsonOption = False,
) -> None:
    """Print shell exports that enable simulated NPUs.

    Examples:
        eval "$(npukit sim env --devices 2)"  # then torchrun, pytest and others find two NPUs
        eval "$(npukit sim env --card 910C)"
    """
    from npukit.simulate import environment

    _switch_to(torch_npu)
    exported = environment(devices or 1, card, compute)
    variables = {name: value for name, value in exported.items() if os.environ.get(name) != value and name != FILE}
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
    show({"variables": variables}, exports, json)


@sim.command(cls=Command)
def info(torch_npu: TorchNpuOption = None, json: JsonOption = False) -> None:
    """Show what is set up, where, and which cards can be simulated.

    Examples:
        npukit sim info
        npukit sim info --json
    """
    from npukit.simulate.info import information

    _switch_to(torch_npu)
    result = information()
    if json:
        show(result, "", json)
        return
    from rich.table import Table

    parts = Table("part", "version", "state", title=f"Simulated NPU for torch {result.torch}")
    parts.add_column("folder", overflow="fold")
    for part in result.parts:
        parts.add_row(part.name, part.version, "ready" if part.ready else "built on first use", part.folder)
    cards = Table("card", "memory", "cube cores", "vector cores", "bf16", "links", title="Cards (--card)")
    for card in result.cards:
        memory = f"{card.memory_mib / 1024:.0f} GiB"
        bf16 = "yes" if card.bf16 else "no"
        cards.add_row(card.name, memory, str(card.cube_cores), str(card.vector_cores), bf16, card.links)
    console().print(parts, cards)


def _switch_to(torch_npu: str | None) -> None:
    if torch_npu:
        from npukit.simulate import other_torch

        release_stdout()
        other_torch.switch_to(torch_npu, "npukit", sys.argv[1:])
