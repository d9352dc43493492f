"""npukit infer"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli import using
from npukit.cli.options import CardOption, DeviceOption, DevicesOption, JsonOption, OutputOption
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

Data = Annotated[
    list[str] | None,
    typer.Argument(help="Rows to answer: .jsonl, .json, .csv, .parquet, or a data set's name.", show_default=False),
]
MaxRows = Annotated[
    int | None,
    typer.Option("--max-rows", min=1, help="Use at most this many rows of each data set.", show_default=False),
]
Folder = Annotated[Path, typer.Option("--folder", help="Where dataset_info.json is, for data sets named in it.")]
Force = Annotated[bool, typer.Option("--force", help="Start over, and replace the output.")]


def infer(
    model: using.ModelArgument,
    data: Data = None,
    output: OutputOption = None,
    max_rows: MaxRows = None,
    folder: Folder = Path("data"),
    force: Force = False,
    adapter: using.AdapterOption = None,
    system: using.SystemOption = None,
    chat_template: using.TemplateOption = None,
    enable_thinking: using.ThinkingOption = None,
    temperature: using.TemperatureOption = None,
    top_p: using.TopPOption = None,
    top_k: using.TopKOption = None,
    min_p: using.MinPOption = None,
    repetition_penalty: using.RepetitionOption = None,
    max_new_tokens: using.TokensOption = using.DEFAULT_TOKENS,
    stop: using.StopOption = None,
    seed: using.SeedOption = 0,
    max_model_len: using.LongestOption = None,
    max_num_seqs: using.RowsOption = 256,
    prompt_lookup: using.LookupOption = 0,
    dtype: using.DtypeOption = "auto",
    trust_remote_code: using.RemoteCodeOption = False,
    allow_pickles: using.PicklesOption = False,
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
    json: JsonOption = False,
) -> None:
    """Answer every row of a file or data set.

    Rows have messages, prompt or instruction columns. Answers are written as JSON lines in their order, by default
    to answers.jsonl. Run the same command again to resume a run that was killed. Rows with a reference
    are scored: accuracy, ROUGE, BLEU. Without DATA this is `npukit chat`. ms-swift's `infer` options work unchanged.
    """
    from npukit.inference import task
    from npukit.inference.rows import start_over
    from npukit.launch.devices import choose
    from npukit.llm.start import asked_ranks

    wanted = task.Wanted(
        model, tuple(adapter or ()), dtype, chat_template, system, trust_remote_code, allow_pickles, enable_thinking
    )
    answers = output or Path("answers.jsonl")
    limit = f"#{max_rows}" if max_rows else ""
    wish = task.Task(
        "infer" if data else "chat",
        wanted,
        tuple(f"{each}{limit}" for each in data or ()),
        answers,
        using.sampling(temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens),
        tuple(stop or ()),
        seed,
        max_model_len,
        max_num_seqs,
        prompt_lookup,
        json=json,
        data_folder=folder,
    )
    if data and force:
        start_over(answers)
    task.start(wish, choose(device, (asked_ranks(devices, os.environ) or 1) if data else 1, card))
