"""npukit precision"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from npukit.cli.help import DEVICES, OUTPUT, Command
from npukit.cli.options import (
    AutoOption,
    CardOption,
    DeviceOption,
    DevicesOption,
    JsonOption,
    StepsOption,
    output_option,
    report_option,
)
from npukit.cli.results import expect
from npukit.cli.results import show as show_result
from npukit.cli.run import script_of, started
from npukit.cli.verbs import SCRIPT_FOLLOWS, new_app
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted
from npukit.report.terminal import say

precision = new_app(help="Find the first operator that differs between two runs.")

CommandArgument = Annotated[list[str], typer.Argument(metavar="[python] SCRIPT|-m MODULE [ARGS]", show_default=False)]


Level = Literal["modules", "ops"]


def new_folder(path: Path) -> None:
    """Refuse a place for dumps that holds something already."""
    from npukit.report.writing import check_parent

    check_parent(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise NpukitError(f"Cannot write {path}: it is not an empty folder. Name a new one.")


def recorded_script(command: list[str]) -> list[str]:
    """The script to record; without torch there is nothing to record."""
    from npukit.packages import require

    words = script_of(command)
    require("torch", extra="sim")
    return words


@precision.command(cls=Command, context_settings=SCRIPT_FOLLOWS)
def capture(
    command: CommandArgument,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="A config.json of msprobe; options take precedence over it."
        ),
    ] = None,
    level: Annotated[
        Level | None,
        typer.Option(show_default="modules", help="What to record: modules, or every operator as well."),
    ] = None,
    steps: StepsOption = "",
    ranks: Annotated[
        str, typer.Option(metavar="NUMBERS", show_default="all", help="Record only these ranks, such as 0,3.")
    ] = "",
    tensors: Annotated[bool, typer.Option("--tensors", help="Write every tensor too, not only statistics.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Check tensors each time they are read: slower, but finds races.")
    ] = False,
    only: Annotated[
        str,
        typer.Option(
            metavar="MODULE", help="Record only the operators and tensors of this module.", show_default=False
        ),
    ] = "",
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
    auto: AutoOption = False,
    output: Annotated[Path | None, output_option("Folder for the dump; msprobe's own with --config.", "FOLDER")] = None,
    json: JsonOption = False,
) -> None:
    """Run a script and record what its modules and operators compute.

    The script is not changed. A step ends with optimizer.step(); all steps are recorded unless --steps chooses some.
    The dump has msprobe's layout.

    Examples:
        npukit precision capture --steps 0-1 -o gpu -- python train.py  # on the reference machine
        npukit precision capture --steps 0-1 -o npu -- python train.py  # on the machine to check
        npukit precision capture --level ops --tensors --steps 0 -o dump -- python train.py
    """
    from npukit.launch.devices import choose
    from npukit.launch.run import run
    from npukit.precision.recording.config import overridden, read_config
    from npukit.precision.recording.hook import recording
    from npukit.precision.recording.options import RecordOptions, parse_numbers

    words = recorded_script(command)
    if config is None and output is None:
        raise NpukitError("Name a folder for the dump with --output, or a config.json of msprobe with --config.")
    folder = str(output) if output else ""
    options = overridden(
        read_config(config, folder) if config else RecordOptions(folder),
        level=level,
        steps=parse_numbers(steps, "--steps") if steps else None,
        ranks=parse_numbers(ranks, "--ranks") if ranks else None,
        tensors=tensors,
        fresh=fresh,
        only=only,
    )
    new_folder(Path(options.output))
    options = overridden(options, output=str(Path(options.output).absolute()))
    chosen = choose(device, devices or 1, card)
    expect(started(words, chosen, output=options.output, level=options.level))
    run(words, recording(options, chosen.environment()), ranks=chosen.count, auto=auto)


@precision.command(cls=Command)
def compare(
    left: Annotated[Path, typer.Argument(show_default=False, help="The reference dump, such as the GPU's.")],
    right: Annotated[Path, typer.Argument(show_default=False, help="The dump to check.")],
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OLD=NEW", show_default=False, help="OLD=NEW, for a module with another name in the right run."
        ),
    ] = None,
    reproduce: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            show_default=False,
            rich_help_panel=OUTPUT,
            help="Also write a folder with a script that runs the first operator alone.",
        ),
    ] = None,
    report: Annotated[Path | None, report_option(".html")] = None,
    json: JsonOption = False,
) -> None:
    """Compare two dumps and name the first operator that differs.

    Exits with code 0 if the dumps are the same wherever they were compared, 1 if they differ, and 2 if a dump cannot be
    read.

    Examples:
        npukit precision compare gpu npu
        npukit precision compare gpu npu --report report.html --reproduce alone
        npukit precision compare gpu npu --rename transformer.h=model.layers
    """
    from npukit.precision.comparing import compare as compare_runs

    for pair in rename or []:
        if "=" not in pair:
            raise NpukitError(f"--rename takes OLD=NEW, such as transformer.h=model.layers, not {pair!r}.")
    comparison = compare_runs(left, right, dict(pair.split("=", 1) for pair in rename or []))
    if report:
        from npukit.precision.page import write_page

        write_page(comparison, report)
    if reproduce and comparison.first:
        from npukit.precision.reading.find import find_call
        from npukit.precision.replay import write_script

        write_script(find_call(left, comparison.first.row), reproduce)
    show(comparison, "compare", json)


@precision.command(cls=Command, context_settings=SCRIPT_FOLLOWS)
def check(
    command: CommandArgument,
    level: Annotated[Level, typer.Option(help="What to record: modules, or every operator as well.")] = "ops",
    steps: StepsOption = "0-2",
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    auto: AutoOption = False,
    output: Annotated[
        Path | None, output_option("Folder that keeps both dumps; without it they are deleted.", "FOLDER")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a script twice and check that it computes the same bits.

    Exits with code 0 if it does, and 1 if not; then the first operator that differs is named.

    Examples:
        npukit precision check -- python train.py
        npukit precision check --device npu --steps 0-9 -- python train.py
    """
    from npukit.launch.devices import choose
    from npukit.precision.determinism import check as check_twice
    from npukit.precision.recording.options import RecordOptions, parse_numbers
    from npukit.report.unfinished import temporary_folder
    from npukit.report.writing import check_parent, make_folder

    words = recorded_script(command)
    if output:
        check_parent(output)
        make_folder(output)
    options = RecordOptions("", level, parse_numbers(steps, "--steps"))
    environment = choose(device, 1, card).environment()
    with temporary_folder("check") as folder:
        checked = check_twice(words, environment, options, output or folder, auto)
    show(checked, "check", json)


@precision.command(cls=Command, context_settings=SCRIPT_FOLLOWS)
def bisect(
    command: CommandArgument,
    output: Annotated[Path, output_option("Folder for the dumps.", "FOLDER")],
    reference: Annotated[
        Wanted, typer.Option(rich_help_panel=DEVICES, help="Device of the reference run.")
    ] = Wanted.cpu,
    steps: StepsOption = "0-2",
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    auto: AutoOption = False,
    json: JsonOption = False,
) -> None:
    """Narrow a difference between two devices down to one operator.

    First modules are recorded, then the operators of the first module that differs, then their tensors.

    Examples:
        npukit precision bisect -o dumps -- python train.py  # this machine's device against its CPU
        npukit precision bisect --device sim --steps 0 -o dumps -- python train.py
    """

    from npukit.launch.devices import choose
    from npukit.precision.bisect import bisect as bisect_runs
    from npukit.precision.recording.options import parse_numbers

    words = recorded_script(command)
    new_folder(output)
    environments = tuple(choose(kind, 1, card).environment() for kind in (reference, device))
    bisection = bisect_runs(
        words, (environments[0], environments[1]), output, parse_numbers(steps, "--steps"), auto, say
    )
    show(bisection, "bisect", json)


@precision.command(cls=Command)
def ranks(
    dump: Annotated[Path, typer.Argument(show_default=False, help="A dump of several data-parallel ranks.")],
    json: JsonOption = False,
) -> None:
    """Compare the ranks of one run: which diverges, when and where.

    Examples:
        npukit precision capture --devices 8 --level ops -o dump -- python train.py
        npukit precision ranks dump
    """
    from npukit.precision.ranks import compare_ranks

    show(compare_ranks(dump), "ranks", json)


@precision.command(cls=Command)
def ops(
    dump: Annotated[
        Path, typer.Argument(show_default=False, help="A dump with operators, from `capture --level ops`.")
    ],
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    json: JsonOption = False,
) -> None:
    """Run every operator of a dump alone, and compare with float64.

    Exits with code 0 if every kernel is as exact as its type allows, and 1 if not.

    Examples:
        npukit precision ops dump  # a dump of `precision capture --level ops`
        npukit precision ops dump --device npu --json
    """
    from npukit.launch.devices import choose
    from npukit.precision.kernels import check_kernels

    show(check_kernels(dump, choose(device, 1, card).environment()), "ops", json)


@precision.command(cls=Command)
def weights(
    left: Annotated[Path, typer.Argument(show_default=False, help="A checkpoint: a file or a folder.")],
    right: Annotated[Path, typer.Argument(show_default=False, help="Another one.")],
    json: JsonOption = False,
) -> None:
    """Compare two checkpoints tensor by tensor, and layer by layer.

    Examples:
        npukit precision weights before.safetensors after.safetensors
        npukit precision weights run/checkpoint-100 run/checkpoint-200 --json
    """
    from npukit.precision.weights import compare_weights

    show(compare_weights(left, right), "weights", json)


@precision.command(cls=Command)
def env(
    left: Annotated[Path, typer.Argument(show_default=False, help="A dump, or its environment.json.")],
    right: Annotated[Path, typer.Argument(show_default=False, help="Another one.")],
    json: JsonOption = False,
) -> None:
    """Compare versions, variables and switches that change numbers.

    Examples:
        npukit precision env gpu npu  # two dumps
        npukit precision env gpu/environment.json npu/environment.json
    """
    from npukit.precision.environments import compare_environments

    show(compare_environments(left, right), "env", json)


def show(result: Any, kind: str, json: bool) -> None:
    """Print a result, and end with its exit code."""
    from npukit.precision import text
    from npukit.precision.result import plain

    data = result.as_data() if hasattr(result, "as_data") else plain(result)
    show_result(data, lambda: text.OF[kind](result), json, result.exit_code)
