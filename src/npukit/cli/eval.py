"""npukit eval"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from npukit.cli.options import CardOption, DeviceOption, JsonOption
from npukit.cli.results import expect
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Devices, Wanted
from npukit.packages import require

if TYPE_CHECKING:
    from npukit.llm.config.use import Use

Data = Annotated[
    list[str] | None,
    typer.Argument(
        help="Texts (.txt), rows (.jsonl, .json, .parquet), multiple choice (.csv), or folders of them.",
        show_default=False,
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option("--lm-eval", metavar="TASKS", help="Run these tasks of lm-eval instead.", show_default=False),
]


def eval(
    use: Use,
    data: Data = None,
    lm_eval: Tasks = None,
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    json: JsonOption = False,
) -> None:
    """Evaluate a model on your own files.

    A .txt file gives a perplexity; a .jsonl, .json or .parquet file that of the answers in its rows, which may have
    images. A .csv file with the columns question, A, B, C, D and answer, as C-Eval, CMMLU and
    MMLU have them, gives the accuracy of the likeliest letter, without examples before the question.

    Examples:
        npukit eval run held-out.txt rows.jsonl  # perplexity of texts and answers
        npukit eval run ceval/ --json  # accuracy of multiple choice
        npukit eval run --lm-eval hellaswag,arc_easy
    """
    from npukit.inference.start import start
    from npukit.launch.devices import choose

    chosen = choose(device, 1, card)
    if lm_eval:
        _run_lm_eval(use, lm_eval, chosen)
    if not data:
        raise NpukitError("Give files to evaluate on, or tasks with --lm-eval.")
    start("eval", use, chosen, data, json)


def _run_lm_eval(use: Use, tasks: str, devices: Devices) -> NoReturn:
    from npukit.launch.run import run

    require("lm_eval")
    if len(use.merged) > 1:
        raise NpukitError("lm-eval accepts a single adapter: merge the adapters first with `npukit export`.")
    adapters = [f"peft={adapter}" for adapter in use.merged]
    arguments = [f"pretrained={use.model.path}", f"dtype={use.model.dtype}", *adapters]
    device = "cpu" if devices.kind == "cpu" else f"{devices.kind}:0"
    command = ["-m", "lm_eval", "--model", "hf", "--model_args", ",".join(arguments), "--tasks", tasks]
    expect(lambda: {"tasks": tasks.split(",")})
    run([*command, "--device", device], devices.environment())
