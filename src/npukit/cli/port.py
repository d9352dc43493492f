"""npukit port"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import DevicesOption, JsonOption, TestOption
from npukit.cli.results import show
from npukit.migrate.goal import Style
from npukit.report.terminal import printable, say


def port(
    project: Annotated[Path, typer.Argument(help="Folder of the project, in a git repository.", show_default=False)],
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND]", show_default=False)] = None,
    style: Annotated[
        Style,
        typer.Option(help="portable: runs on CUDA and NPU, and on the CPU where it did before; npu: torch_npu only."),
    ] = Style.portable,
    branch: Annotated[str, typer.Option(help="Branch to write the migration to.")] = "npukit/port",
    test: TestOption = None,
    devices: DevicesOption = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="PATH", show_default=False, help="Also copy this path, which is not in git, for the runs."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Port a project on a git branch: migrate, test, verify, report.

    One commit per rule on a branch of its own; your branch and uncommitted work stay as they are. Files that no longer
    import are put back. The project's tests and the command after -- run before and after, on a simulated NPU. Run it
    again after an interruption, or after commits of yours on the branch: it continues. Exits with code 1 if something
    failed.

    Examples:
        npukit port .  # migrate on the branch npukit/port, and run the tests
        npukit port . -- python train.py --steps 20  # and compare a short training before and after
        npukit port . --test "pytest -q tests/unit"  # with another command that tests it
    """
    from npukit.port.port import port as run
    from npukit.port.report import as_data, report_of, write_reports
    from npukit.report.rendering import Format, render

    result = run(project, command or (), style, branch, test, data or (), devices, log=say)
    files = write_reports(result)

    def text() -> str:
        return render(report_of(result), Format.text) + printable("\n".join(map(str, files)))

    show({**as_data(result), "reports": files}, text, json, 0 if result.good else 1)
