"""The options that several verbs share: one meaning and one help text each, whichever verb they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npukit.errors import NpukitError
from npukit.facts.target import Target
from npukit.launch.devices import Wanted
from npukit.report.rendering import Format
from npukit.report.writing import check_file, check_parent


def place(path: Path | None) -> Path | None:
    """A callback that refuses a file or folder that cannot be written at once, and not after the work."""
    if path:
        check_parent(path)
    return path


def file_place(path: Path | None) -> Path | None:
    """The same for what can only be a file."""
    if path:
        check_file(path)
    return path


def report_place(path: Path | None) -> Path | None:
    """The same for a report, whose format is that of its name."""
    if path and path.suffix not in (".html", ".md", ".json"):
        raise NpukitError(f"{path} is no report that npukit can write: name a .html, .md or .json file.")
    return file_place(path)


DeviceOption = Annotated[
    Wanted,
    typer.Option("--device", help="Device to run on. auto: an NPU if there is one, else CUDA, else the CPU."),
]
DevicesOption = Annotated[
    int | None,
    typer.Option("--devices", min=1, show_default=False, help="Number of devices on this machine, one process each."),
]
CardOption = Annotated[
    str, typer.Option("--card", help="Ascend card to target or simulate; `npukit sim info` lists them.")
]
TorchNpuOption = Annotated[
    str | None,
    typer.Option(
        "--torch-npu",
        metavar="VERSION",
        show_default="the one for the installed torch",
        help="Simulated NPU: use this torch_npu and its torch, in an environment of their own.",
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
AutoOption = Annotated[bool, typer.Option("--auto", help="Take CUDA code as it is: it is migrated on the fly.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Format of the report.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", callback=place, show_default=False, help="Write the result to this file or folder."),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        callback=report_place,
        show_default=False,
        help="Also write a report to this .html, .md or .json.",
    ),
]
SelectOption = Annotated[
    list[str] | None, typer.Option("--select", show_default=False, help="Only rules with this prefix, such as NPK2.")
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option("--ignore", show_default=False, help="No rules with this prefix.")
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        show_default=False,
        help="Simulated NPU: make something fail, such as oom@100 (see `npukit docs simulated-npu`).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
