"""npukit plan"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import AutoOption, CardOption, DevicesOption, JsonOption, NodesOption
from npukit.cli.results import show
from npukit.cli.run import script_of, starts_python
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.facts.planning import Device, device_of
from npukit.report.language import translated
from npukit.report.terminal import say

Words = Annotated[
    list[str] | None, typer.Argument(metavar="CONFIG.yaml [KEY=VALUE]… | -- python SCRIPT [ARGS]", show_default=False)
]
Walk = Annotated[bool, typer.Option("--walk", help="Also walk through two steps on a simulated card.")]
Fit = Annotated[bool, typer.Option("--fit", help="Find the change that costs least and makes it fit.")]
Serve = Annotated[bool, typer.Option("--serve", help="Plan serving the model with npukit's engine instead.")]
Table = Annotated[bool, typer.Option("--table", help="Compare LoRA and full training on one, four and eight cards.")]


def plan(
    words: Words = None,
    card: CardOption = DEFAULT_CARD,
    devices: DevicesOption = None,
    nnodes: NodesOption = None,
    walk: Walk = False,
    fit: Fit = False,
    table: Table = False,
    serve: Serve = False,
    auto: AutoOption = False,
    json: JsonOption = False,
) -> None:
    """Estimate whether a training run fits, and how long it takes.

    CONFIG.yaml is a file for `npukit train`, LLaMA-Factory or ms-swift; KEY=VALUE after it overrides an option. No
    card, weights or data are needed: a folder with config.json, or a well-known name, is enough. After -- comes any
    training script, which is always walked through: nothing is computed, but memory is counted. With --serve, a model
    or a file for `npukit serve` is planned on one card: what its cache holds. To compare, --card may also name a GPU:
    H100, H200, A100, L40S, 4090.

    Examples:
        npukit plan train.yaml --card 910B3 --devices 8
        npukit plan train.yaml --fit  # what to change if it does not fit
        npukit plan --card 910B4 -- python train.py  # any script: count its memory on a simulated card
    """
    chosen, nodes = device_of(card), nnodes or 1
    ranks = (devices or 1) * nodes
    if not words:
        raise NpukitError("Name a YAML file, or a script after --; see `npukit plan --help`.")
    if serve:
        if walk or fit or table or ranks > 1:
            raise NpukitError("--serve plans one card by a formula: leave out --walk, --fit, --table and --devices.")
        _plan_serving(words, chosen.name, json)
        return
    script = script_of(words) if names_script(words) else []
    if chosen.is_gpu and (walk or script):
        raise NpukitError(f"--walk simulates Ascend cards only, and a {chosen.name} is not one: leave it out.")
    if not script:
        _plan_configuration(words, ranks, chosen, nodes, walk, fit, table, json)
    elif fit or table:
        raise NpukitError("--fit and --table need a configuration: a script cannot be changed.")
    else:
        _walk_script(script, ranks, chosen.name, nodes, auto, json)


def _plan_configuration(
    words: list[str], ranks: int, card: Device, nodes: int, walk: bool, fit: bool, table: bool, json: bool
) -> None:
    from npukit.llm.reading.read import read
    from npukit.llm.start import check_packages
    from npukit.performance.plan import text
    from npukit.performance.plan.fit import find_fit
    from npukit.performance.plan.job import plan as make_plan
    from npukit.performance.plan.job import walked
    from npukit.performance.plan.table import make_table

    reading = read(Path(words[0]), words[1:], os.environ, ranks=ranks, files=False)
    reading.check_card(card.name, card.bf16)
    config = reading.config
    if table:
        rows = make_table(config, card.name)
        show({"card": card.name, "rows": rows}, lambda: text.table_text(rows, card.name), json)
        return
    planned = make_plan(config, ranks, card.name, nodes)
    if fit and planned.fits is False:
        better = find_fit(config, ranks, card.name, nodes, walk)
        show(better.as_json(), lambda: translated(text.fit_text(better, ranks)), json)
        return
    if walk:
        check_packages(config)
        _tell_walk(card.name)
        planned = walked(planned, config)
    show(planned.as_json(), lambda: translated(text.as_text(planned)), json)


def _plan_serving(words: list[str], card: str, json: bool) -> None:
    from npukit.llm.reading.read_use import read_use
    from npukit.performance.plan.serving import plan_serving
    from npukit.performance.plan.text import serving_text

    planned = plan_serving(read_use("serve", words).use, card)
    show(planned.as_json(), lambda: translated(serving_text(planned)), json)


def _walk_script(script: list[str], devices: int, card: str, nodes: int, auto: bool, json: bool) -> None:
    from npukit.packages import require
    from npukit.performance.plan.job import walk_of_script
    from npukit.performance.plan.text import time_lines, walk_lines

    require("torch", "numpy", extra="sim")
    _tell_walk(card)
    seen = walk_of_script(script, devices, card, nodes, auto)
    lines = [*walk_lines(seen, card), "", *(time_lines(seen.time) if seen.time else ())]
    show(seen.as_json(), translated("\n".join(lines)), json)


def _tell_walk(card: str) -> None:
    say(f"walking through two steps on a simulated {card}, which can take a minute")


def names_script(words: Sequence[str]) -> bool:
    """Whether these words are a script or module rather than a configuration."""
    return bool(words) and (words[0] == "-m" or words[0].endswith(".py") or starts_python(words[0]))
