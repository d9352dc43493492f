"""Options that several verbs share, each with one meaning and one help text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from npukit.cli.help import DEVICES, OUTPUT, SIMULATED
from npukit.errors import NpukitError
from npukit.facts.target import Target
from npukit.launch.devices import Wanted
from npukit.report.writing import check_file, check_parent


def place(path: Path | None) -> Path | None:
    """A callback that refuses a file or folder that cannot be written, before the work begins."""
    if path:
        check_parent(path)
    return path


def file_place(path: Path | None) -> Path | None:
    """The same for a file."""
    if path:
        check_file(path)
    return path


def output_option(
    help: str, metavar: str, default: str = "", check: Callable[[Path | None], Path | None] | None = place
) -> Any:
    """The option --output: its meaning and its default."""
    return typer.Option(
        "--output",
        "-o",
        metavar=metavar,
        callback=check,
        show_default=default or False,
        rich_help_panel=OUTPUT,
        help=help,
    )


def report_option(*suffixes: str) -> Any:
    """The option --report: a file whose suffix is its format."""
    *first, last = suffixes
    listed = f"{', '.join(first)} or {last}" if first else last

    def check(path: Path | None) -> Path | None:
        if path and path.suffix not in suffixes:
            raise NpukitError(f"--report {path}: name a file that ends in {listed}.")
        return file_place(path)

    return typer.Option(
        "--report",
        metavar="FILE",
        callback=check,
        show_default=False,
        rich_help_panel=OUTPUT,
        help=f"Also write a report to this file: {listed}.",
    )


DeviceOption = Annotated[
    Wanted,
    typer.Option(
        "--device",
        rich_help_panel=DEVICES,
        help="Device to run on. auto: an NPU if there is one, else CUDA, else the CPU.",
    ),
]
# torchrun's and ms-swift's names of --devices work as well.
DevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices",
        "--nproc-per-node",
        "--nproc_per_node",
        min=1,
        show_default=False,
        rich_help_panel=DEVICES,
        help="Number of devices on this machine, one process each.",
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option("--nnodes", min=1, show_default=False, rich_help_panel=DEVICES, help="Number of machines."),
]
CardOption = Annotated[
    str,
    typer.Option(
        "--card",
        rich_help_panel=DEVICES,
        help="Ascend card to target or simulate, such as 910B3 or 910C; `npukit docs cards` lists them.",
    ),
]
TorchNpuOption = Annotated[
    str | None,
    typer.Option(
        "--torch-npu",
        metavar="VERSION",
        show_default="the one for the installed torch",
        rich_help_panel=SIMULATED,
        help="Use this torch_npu and its torch, in an environment of their own.",
    ),
]
TargetOption = Annotated[
    Target | None,
    typer.Option(
        "--target",
        parser=Target.parse,
        metavar="NAME=VALUE,...",
        show_default="the installed torch_npu, else the newest known one",
        help="Versions and card to target, such as torch_npu=2.7,card=910B3; also torch and cann.",
    ),
]
AutoOption = Annotated[
    bool,
    typer.Option("--auto", rich_help_panel=DEVICES, help="Run CUDA code unchanged: it is migrated on the fly."),
]
StepsOption = Annotated[
    str,
    typer.Option(
        "--steps", metavar="FIRST-LAST", help="Optimizer steps to record, counted from 0, such as 10-12 or 3."
    ),
]
TestOption = Annotated[
    str | None,
    typer.Option(
        "--test",
        metavar="COMMAND",
        show_default="python -m pytest -q, if there are tests",
        help='Command that tests the project; "" for none.',
    ),
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="PREFIX", show_default=False, help="Only rules with this prefix, such as NPK2."),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="PREFIX", show_default=False, help="Leave out rules with this prefix."),
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        show_default=False,
        rich_help_panel=SIMULATED,
        help="Inject a fault, such as oom@100 (see `npukit docs simulated-npu`).",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", rich_help_panel=OUTPUT, help="Overwrite existing output.")]
JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print the result as JSON.")]
