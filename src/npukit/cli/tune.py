"""npukit tune"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.help import OUTPUT
from npukit.cli.options import DeviceOption, DevicesOption, JsonOption, output_option
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.launch.devices import Wanted

Words = Annotated[list[str] | None, typer.Argument(metavar="CONFIG.yaml [KEY=VALUE]…", show_default=False)]
MaxSteps = Annotated[
    int, typer.Option("--max-steps", min=3, help="Optimizer steps of each run; the first two do not count.")
]
MaxMemory = Annotated[
    float | None,
    typer.Option(
        "--max-memory", metavar="GIB", min=0, show_default="all", help="Most memory to use on each device, in GiB."
    ),
]
Trials = Annotated[
    Path,
    typer.Option("--trials", metavar="FOLDER", rich_help_panel=OUTPUT, help="Folder for the results of the trials."),
]


def tune(
    words: Words = None,
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    max_steps: MaxSteps = 8,
    max_memory: MaxMemory = None,
    trials: Trials = Path("tuning"),
    output: Annotated[
        Path | None, output_option("File for the fastest configuration.", "FILE", "CONFIG.tuned.yaml")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the fastest training settings for this machine.

    Short runs try batch size, accumulation, checkpointing, data workers, the length of packed rows and kinds of
    parallelism. The number of tokens per step stays the same. The fastest configuration so far is in CONFIG.tuned.yaml.
    If you stop the search, the same command continues it.

    Examples:
        npukit tune train.yaml  # writes train.tuned.yaml
        npukit tune train.yaml --devices 8 --max-memory 48
        npukit train train.tuned.yaml  # then train with it
    """
    import yaml

    from npukit.launch.devices import choose
    from npukit.llm.config.options import Config
    from npukit.llm.reading.read import read
    from npukit.llm.start import check_packages
    from npukit.performance.tune.tune import describe
    from npukit.performance.tune.tune import tune as find
    from npukit.report.writing import write_text

    if not words:
        raise NpukitError("Name a YAML file, or see `npukit tune --help`.")
    chosen = choose(device, devices)
    file = Path(words[0])
    reading = read(file, words[1:], os.environ, ranks=chosen.count)
    reading.check_card(chosen.card, chosen.has_bf16)
    check_packages(reading.config)
    place = output or file.with_suffix(".tuned.yaml")

    def keep(config: Config) -> None:
        write_text(place, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))

    log = functools.partial(print, file=sys.stderr, flush=True)
    tuned = find(reading.config, chosen, trials, max_steps, max_memory, log, keep)
    keep(tuned.config)
    fastest = f"fastest, {tuned.gain:.2f} times as fast as before, written to {place}:\n{describe(tuned.best)}"
    show({**tuned.as_json(), "output": place}, fastest, json)
