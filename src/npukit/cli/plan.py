"""npukit plan"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import CardOption, JsonOption
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD

Words = Annotated[
    list[str] | None, typer.Argument(metavar="CONFIG.yaml [KEY=VALUE]… | -- python SCRIPT [ARGS]", show_default=False)
]
Devices = Annotated[int, typer.Option("--devices", min=1, help="Number of cards on each machine.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Number of machines.")]
WalkOption = Annotated[bool, typer.Option("--walk", help="Also walk through two steps on a simulated card.")]


def plan(
    words: Words = None,
    card: CardOption = DEFAULT_CARD,
    devices: Devices = 1,
    nodes: Nodes = 1,
    walk: WalkOption = False,
    json: JsonOption = False,
) -> None:
    """Say whether a training run fits on a card, and how long it takes.

    CONFIG.yaml is the file of `npukit train`, LLaMA-Factory or ms-swift; words after it override it. Neither a card
    nor the model's weights nor the data need to be there: a folder with config.json, or a well-known name, is enough.
    After -- comes any training script, which is always walked through: nothing is computed, but memory is counted.
    """
    from npukit.facts.cards import card as find_card
    from npukit.report.json import to_json

    chosen = find_card(card)
    if not words:
        raise NpukitError("Name a YAML file, or a script after --; see `npukit plan --help`.")
    if script := _script(words):
        from npukit.performance.plan.job import walk_of_script
        from npukit.performance.plan.text import time_lines, walk_lines

        seen = walk_of_script(script, devices * nodes, chosen.name, nodes)
        lines = [*walk_lines(seen, chosen.name), "", *(time_lines(seen.time) if seen.time else ())]
        print(to_json(seen.as_json()) if json else "\n".join(lines))
        return
    from npukit.llm.config.read import read
    from npukit.performance.plan.job import plan as make_plan
    from npukit.performance.plan.job import walked
    from npukit.performance.plan.text import as_text

    reading = read(Path(words[0]), words[1:], os.environ, ranks=devices * nodes, files=False)
    reading.check_card(chosen.name, chosen.bf16)
    found = make_plan(reading.config, devices * nodes, chosen.name, nodes)
    if walk:
        found = walked(found, reading.config)
    print(to_json(found.as_json()) if json else as_text(found))


def _script(words: list[str]) -> list[str]:
    """The script or module of a command; nothing if it is a configuration."""
    from npukit.cli.run import check_command

    if Path(words[0]).name.startswith("python"):
        words = words[1:]
    elif words[0] != "-m" and not words[0].endswith(".py"):
        return []
    if not words:
        raise NpukitError("Name a script after python.")
    check_command(words, "plan")
    return words
