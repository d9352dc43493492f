"""npukit sim"""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import Annotated

import typer

from npukit.cli.run import Compute
from npukit.facts.cards import DEFAULT_CARD

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at the simulated NPU, set it up, use it from any other command.",
)


@app.command()
def setup() -> None:
    """Download and compile what the simulated NPU needs now, rather than on first use."""
    from npukit.simulate import build

    print(f"The simulated NPU is ready in {build.ensure().cache}")


@app.command()
def env(
    devices: Annotated[int, typer.Option(min=1, help="How many simulated NPUs.")] = 1,
    card: Annotated[str, typer.Option(help="The kind of card; `npukit sim info` lists them.")] = DEFAULT_CARD,
    compute: Annotated[Compute, typer.Option(help="With shapes nothing is computed.")] = Compute.full,
) -> None:
    """Print shell exports that give later commands simulated NPUs: eval "$(npukit sim env --devices 2)"."""
    from npukit.simulate import environment

    for name, value in environment(devices, card, compute.value).items():
        if os.environ.get(name) != value:
            print(f"export {name}={shlex.quote(value)}")


@app.command()
def info(json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Say what of the simulated NPU is set up, where it is, and which cards there are."""
    from npukit.simulate.info import information

    result = information()
    if json:
        from json import dumps

        print(dumps(dataclasses.asdict(result), indent=2))
        return
    from rich.console import Console
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
    console = Console()
    console.print(parts, cards)
