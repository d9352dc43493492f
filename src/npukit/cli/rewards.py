"""npukit rewards"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import JsonOption
from npukit.cli.results import show

if TYPE_CHECKING:
    from npukit.rl.rewards.trial import RewardTrial

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE.py|NAME]…", help="Python files, or names of functions.", show_default=False),
]
Data = Annotated[Path, typer.Option("--data", help="Rows with answers: JSON, JSON Lines, CSV or Parquet.")]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Number of rows to try.")]


def rewards(files: Files = None, *, data: Data, rows: Rows = 8, json: JsonOption = False) -> None:
    """Try reward functions on rows before training with them.

    FILE.py contains reward functions in the form of TRL or ms-swift; all of them are tried unless you name some.
    accuracy, format, react_format, toolbench, cosine, repetition and soft_overlong need no file. Lengths are counted in
    words here.

    Examples:
        npukit rewards rewards.py --data answers.jsonl
        npukit rewards format repetition --data answers.jsonl --rows 100
    """
    from npukit.llm.config.reinforcement import RewardOptions
    from npukit.rl.rewards.trial import try_rewards

    words = files or []
    plugins = tuple(Path(word) for word in words if word.endswith(".py"))
    names = tuple(word for word in words if not word.endswith(".py"))
    trial = try_rewards(RewardOptions(functions=names, plugins=plugins), data, rows)
    if not json:
        _show(trial)
    show(trial, "", json, exit_code=int(bool(trial.problems)))


def _show(trial: RewardTrial) -> None:
    from rich.table import Table

    from npukit.report.terminal import console, printable

    table = Table("row", *trial.functions, "answer")
    for number, (scores, answer) in enumerate(zip(trial.rewards, trial.answers, strict=True), 1):
        short = " ".join(answer.split())
        table.add_row(
            str(number), *(_shown(reward) for reward in scores), printable(short[:60] + "…" * (len(short) > 60))
        )
    table.add_section()
    table.add_row("mean", *(_shown(mean) for mean in trial.means), "")
    console().print(table)
    for problem in trial.problems:
        console().print(printable(str(problem)))


def _shown(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.3g}"
