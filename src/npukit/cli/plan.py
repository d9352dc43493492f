"""npukit plan"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import CardOption, JsonOption
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD

Words = Annotated[list[str] | None, typer.Argument(metavar="CONFIG.yaml [KEY=VALUE]…", show_default=False)]
Devices = Annotated[int, typer.Option("--devices", min=1, help="Number of cards on each machine.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Number of machines.")]


def plan(
    words: Words = None,
    card: CardOption = DEFAULT_CARD,
    devices: Devices = 1,
    nodes: Nodes = 1,
    json: JsonOption = False,
) -> None:
    """Say whether a training run fits on a card, and how long it takes.

    CONFIG.yaml is the file of `npukit train`, LLaMA-Factory or ms-swift; words after it override it. Neither a card
    nor the model's weights nor the data need to be there: a folder with config.json, or a well-known name, is enough.
    """
    from npukit.facts.cards import card as find_card
    from npukit.llm.config.read import read
    from npukit.performance.plan.job import plan as make_plan
    from npukit.performance.plan.text import as_text
    from npukit.report.json import to_json

    if not words:
        raise NpukitError("Name a YAML file, or see `npukit plan --help`.")
    chosen = find_card(card)
    reading = read(Path(words[0]), words[1:], os.environ, ranks=devices * nodes, files=False)
    reading.check_card(chosen.name, chosen.bf16)
    found = make_plan(reading.config, devices * nodes, chosen.name, nodes)
    print(to_json(found.as_json()) if json else as_text(found))
