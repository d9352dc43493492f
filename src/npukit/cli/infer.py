"""npukit infer"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import CardOption, DeviceOption, DevicesOption, JsonOption
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

if TYPE_CHECKING:
    from npukit.llm.config.use import Use

Data = Annotated[
    list[str] | None,
    typer.Argument(help="Rows to answer: .jsonl, .json, .csv, .parquet, or a data set's name.", show_default=False),
]


def infer(
    use: Use,
    data: Data = None,
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
    json: JsonOption = False,
) -> None:
    """Answer every row of a file or data set.

    Rows have messages, prompt or instruction columns. Answers are written as JSON lines in their order, by default
    to answers.jsonl. Run the same command again to resume a run that was killed. Rows with a reference
    are scored: accuracy, ROUGE, BLEU. Without DATA this is `npukit chat`. ms-swift's `infer` options work unchanged.

    Examples:
        npukit infer run rows.jsonl --output answers.jsonl
        npukit infer Qwen/Qwen2-0.5B-Instruct rows.jsonl --devices 8 --temperature 0
    """
    from npukit.inference.rows import ANSWERS, start_over
    from npukit.inference.start import start
    from npukit.launch.devices import choose
    from npukit.llm.start import asked_ranks

    if not data:
        start("chat", use, choose(device, 1, card))
    if use.data.force:
        start_over(use.data.output or ANSWERS)
    start("infer", use, choose(device, asked_ranks(devices, os.environ) or 1, card), data, json)
