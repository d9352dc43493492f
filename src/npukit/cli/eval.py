"""npukit eval"""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from npukit.cli.options import CardOption, DeviceOption, JsonOption
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Devices, Wanted
from npukit.packages import require

Model = Annotated[str, typer.Argument(help="Folder or hub name of the model, or of an adapter.", show_default=False)]
Data = Annotated[
    list[str] | None,
    typer.Argument(help="Texts (.txt), multiple choice (.csv), or folders of them.", show_default=False),
]
Adapters = Annotated[list[str] | None, typer.Option("--adapter", help="LoRA adapter to merge. Repeatable.")]
Tasks = Annotated[
    str | None,
    typer.Option("--lm-eval", metavar="TASKS", help="Run these tasks of lm-eval instead.", show_default=False),
]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")]
Longest = Annotated[
    int | None, typer.Option("--max-model-len", min=2, help="Longest piece of text, in tokens.", show_default=False)
]


def eval(
    model: Model,
    data: Data = None,
    adapter: Adapters = None,
    lm_eval: Tasks = None,
    dtype: Dtype = "auto",
    max_model_len: Longest = None,
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    json: JsonOption = False,
) -> None:
    """Measure a model on your own files.

    A .txt file gives a perplexity. A .csv file with the columns question, A, B, C, D and answer, as C-Eval, CMMLU and
    MMLU have them, gives the accuracy of the likeliest letter, without examples before the question.
    """
    from npukit.inference.task import Task, start
    from npukit.inference.task import Wanted as WantedModel
    from npukit.launch.devices import choose

    chosen = choose(device, 1, card)
    if lm_eval:
        _run_lm_eval(model, adapter or [], lm_eval, dtype, chosen)
    if not data:
        raise NpukitError("Give .txt or .csv files to evaluate on, or tasks with --lm-eval.")
    wanted = WantedModel(model, tuple(adapter or ()), dtype)
    start(Task("eval", wanted, tuple(data), longest=max_model_len, json=json), chosen)


def _run_lm_eval(model: str, adapters: list[str], tasks: str, dtype: str, devices: Devices) -> NoReturn:
    from npukit.launch.run import run

    require("lm_eval")
    if len(adapters) > 1:
        raise NpukitError("lm-eval takes one adapter: merge them first with `npukit export`.")
    arguments = [f"pretrained={model}", f"dtype={dtype}", *(f"peft={adapter}" for adapter in adapters)]
    device = "cpu" if devices.kind == "cpu" else f"{devices.kind}:0"
    command = ["-m", "lm_eval", "--model", "hf", "--model_args", ",".join(arguments), "--tasks", tasks]
    run([*command, "--device", device], devices.environment())
