"""npukit precision"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from npukit.cli.options import AutoOption, CardOption, DeviceOption, DevicesOption, JsonOption, file_place
from npukit.cli.verbs import SCRIPT_FOLLOWS, new_app
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

precision = new_app(help="Find the first operator that differs between two runs.")

CommandArgument = Annotated[list[str], typer.Argument(metavar="[python] SCRIPT|-m MODULE [ARGS]", show_default=False)]


class Level(str, Enum):
    modules = "modules"
    ops = "ops"


def script_of(command: list[str]) -> list[str]:
    """The script in a command that may begin with `python`, as people are used to write it."""
    from npukit.cli.run import check_command

    words = command[1:] if command[0] == "--" else command
    words = words[1:] if words and Path(words[0]).name.startswith("python") and not words[0].endswith(".py") else words
    if not words:
        raise NpukitError("Name the script to run after --, such as `-- python train.py`.")
    check_command(words, "precision capture")
    return words


def new_folder(path: Path) -> None:
    """Refuse a place for dumps that holds something already."""
    from npukit.report.writing import check_parent

    check_parent(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise NpukitError(f"Cannot write {path}: it is not an empty folder. Name a new one.")


@precision.command(context_settings=SCRIPT_FOLLOWS)
def capture(
    command: CommandArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", show_default=False, help="Folder for the dump.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(show_default=False, help="A config.json of msprobe; options go before it.")
    ] = None,
    level: Annotated[
        Level | None,
        typer.Option(show_default="modules", help="What to record: modules, or every operator as well."),
    ] = None,
    steps: Annotated[str, typer.Option(metavar="0-2,7", help="Only these steps.", show_default="all")] = "",
    ranks: Annotated[str, typer.Option(metavar="0,3", help="Only these ranks.", show_default="all")] = "",
    tensors: Annotated[bool, typer.Option("--tensors", help="Write every tensor too, not only statistics.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Look at tensors each time they are read: finds races, takes longer.")
    ] = False,
    only: Annotated[str, typer.Option(help="Operators and tensors of this module only.", show_default=False)] = "",
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
    auto: AutoOption = False,
) -> None:
    """Run a script and record what its modules and operators compute.

    The script is not changed. A step ends with optimizer.step(). The dump has the layout of msprobe's.
    """
    from npukit.launch.devices import choose
    from npukit.launch.run import run
    from npukit.precision.recording.config import overridden, read_config
    from npukit.precision.recording.hook import recording
    from npukit.precision.recording.options import Options, parse_numbers

    words = script_of(command)
    if config is None and output is None:
        raise NpukitError("Name a folder for the dump with --output, or a config.json of msprobe with --config.")
    given = str(output) if output else ""
    options = overridden(
        read_config(config, given) if config else Options(given),
        level=level.value if level else None,
        steps=parse_numbers(steps, "--steps") if steps else None,
        ranks=parse_numbers(ranks, "--ranks") if ranks else None,
        tensors=tensors,
        fresh=fresh,
        only=only,
    )
    new_folder(Path(options.output))
    options = overridden(options, output=str(Path(options.output).absolute()))
    chosen = choose(device, devices or 1, card)
    run(words, recording(options, chosen.environment()), ranks=chosen.count, auto=auto)


@precision.command()
def compare(
    left: Annotated[Path, typer.Argument(show_default=False, help="The dump that is right, such as the GPU's.")],
    right: Annotated[Path, typer.Argument(show_default=False, help="The dump in question.")],
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", show_default=False, help="A module of the left run that has another name."),
    ] = None,
    reproduce: Annotated[
        Path | None,
        typer.Option(show_default=False, help="Write a folder with a script that runs the first operator alone."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(callback=file_place, show_default=False, help="Also write a page with every row to this file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare two dumps and name the first operator that differs.

    Exit code 0: the same wherever it was compared. 1: different. 2: a dump cannot be read.
    """
    from npukit.precision.comparing import compare as compare_runs

    for each in rename or []:
        if "=" not in each:
            raise NpukitError(f"--rename takes OLD=NEW, such as transformer.h=model.layers, not {each!r}.")
    found = compare_runs(left, right, dict(each.split("=", 1) for each in rename or []))
    if html:
        from npukit.precision.page import write_page

        write_page(found, html)
    if reproduce and found.first:
        from npukit.precision.reading.find import find_call
        from npukit.precision.replay import write_script

        write_script(find_call(left, found.first.row), reproduce)
    show(found, "compare", json)


@precision.command(context_settings=SCRIPT_FOLLOWS)
def check(
    command: CommandArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", show_default=False, help="Keep both dumps in this folder.")
    ] = None,
    level: Annotated[Level, typer.Option(help="What to record: modules, or every operator as well.")] = Level.ops,
    steps: Annotated[str, typer.Option(metavar="0-2,7", help="Only these steps.")] = "0-2",
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    auto: AutoOption = False,
    json: JsonOption = False,
) -> None:
    """Run a script twice and say whether it computes the same bits.

    Exit code 0: it does. 1: it does not, and the first operator that differs is named.
    """
    from npukit.launch.devices import choose
    from npukit.precision.determinism import check as check_twice
    from npukit.precision.recording.options import Options, parse_numbers
    from npukit.report.unfinished import temporary_folder
    from npukit.report.writing import check_parent

    words = script_of(command)
    if output:
        check_parent(output)
        output.mkdir(exist_ok=True)
    options = Options("", level.value, parse_numbers(steps, "--steps"))
    environment = choose(device, 1, card).environment()
    with temporary_folder("check") as folder:
        found = check_twice(words, environment, options, output or folder, auto)
    show(found, "check", json)


@precision.command(context_settings=SCRIPT_FOLLOWS)
def bisect(
    command: CommandArgument,
    output: Annotated[Path, typer.Option("--output", "-o", show_default=False, help="Folder for the dumps.")],
    reference: Annotated[Wanted, typer.Option(help="Device of the run that is right.")] = Wanted.cpu,
    steps: Annotated[str, typer.Option(metavar="0-2,7", help="Only these steps.")] = "0-2",
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    auto: AutoOption = False,
    json: JsonOption = False,
) -> None:
    """Run a script on two devices, closer each time, to the operator.

    First modules are recorded, then the operators of the first module that differs, then their tensors.
    """
    import sys

    from npukit.launch.devices import choose
    from npukit.precision.bisect import bisect as bisect_runs
    from npukit.precision.recording.options import parse_numbers

    words = script_of(command)
    new_folder(output)
    environments = tuple(choose(each, 1, card).environment() for each in (reference, device))
    found = bisect_runs(
        words,
        (environments[0], environments[1]),
        output,
        parse_numbers(steps, "--steps"),
        auto,
        lambda line: print(f"npukit: {line}", file=sys.stderr),
    )
    show(found, "bisect", json)


@precision.command()
def ranks(
    dump: Annotated[Path, typer.Argument(show_default=False, help="A dump of several data-parallel ranks.")],
    json: JsonOption = False,
) -> None:
    """Compare the ranks of one run: who drifts away, when and where."""
    from npukit.precision.ranks import compare_ranks

    show(compare_ranks(dump), "ranks", json)


@precision.command()
def ops(
    dump: Annotated[
        Path, typer.Argument(show_default=False, help="A dump with operators, as of `capture --level ops`.")
    ],
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    json: JsonOption = False,
) -> None:
    """Run every operator of a dump alone, and compare with float64.

    Exit code 0: every kernel is as exact as its type allows. 1: some are out of line.
    """
    from npukit.launch.devices import choose
    from npukit.precision.kernels import check_kernels

    show(check_kernels(dump, choose(device, 1, card).environment()), "ops", json)


@precision.command()
def weights(
    left: Annotated[Path, typer.Argument(show_default=False, help="A checkpoint: a file or a folder.")],
    right: Annotated[Path, typer.Argument(show_default=False, help="Another one.")],
    json: JsonOption = False,
) -> None:
    """Compare two checkpoints tensor by tensor, and layer by layer."""
    from npukit.precision.weights import compare_weights

    show(compare_weights(left, right), "weights", json)


@precision.command()
def env(
    left: Annotated[Path, typer.Argument(show_default=False, help="A dump, or its environment.json.")],
    right: Annotated[Path, typer.Argument(show_default=False, help="Another one.")],
    json: JsonOption = False,
) -> None:
    """Compare versions, variables and switches that change numbers."""
    from npukit.precision.environments import compare_environments

    show(compare_environments(left, right), "env", json)


def show(found: Any, kind: str, json: bool) -> None:
    """Print a result, and end with its exit code."""
    if json:
        from npukit.precision.result import plain
        from npukit.report.json import to_json

        print(to_json(found.as_data() if hasattr(found, "as_data") else plain(found)))
    else:
        from npukit.precision import text

        print(text.OF[kind](found))
    raise typer.Exit(found.exit_code)
