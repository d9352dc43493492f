"""npukit migrate"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import IgnoreOption, JsonOption, SelectOption, TargetOption, output_option, report_option
from npukit.cli.results import show as show_result
from npukit.errors import NpukitError
from npukit.migrate.goal import Style
from npukit.report.language import translated
from npukit.report.progress import progress
from npukit.report.terminal import printable, say
from npukit.report.writing import write_text

if TYPE_CHECKING:
    from npukit.migrate.migration import Migration


def migrate(
    path: Annotated[Path, typer.Argument(help="A project's folder, or one file.", show_default=False)],
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Change the files themselves; --undo restores them.")
    ] = False,
    output: Annotated[
        Path | None, output_option("Write the migrated copy to this folder or file; the original stays.", "PATH")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print the changes as a patch and write nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the last migration in place.")] = False,
    style: Annotated[
        Style,
        typer.Option(help="portable: runs on CUDA and NPU, and on the CPU where it did before; npu: torch_npu only."),
    ] = Style.portable,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Also make single-card training scripts run on several cards.")
    ] = False,
    target: TargetOption = None,
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            show_default=False,
            help="Before writing, import every changed file and run this command, both before and after.",
        ),
    ] = None,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Migrate in place despite uncommitted changes.")
    ] = False,
    report: Annotated[Path | None, report_option(".html", ".md", ".json")] = None,
    json: JsonOption = False,
) -> None:
    """Rewrite CUDA code so that it runs on NPUs as well.

    Without --in-place or --output it only shows what would change.

    Examples:
        npukit migrate . --diff  # see every change, write nothing
        npukit migrate . --output ../migrated  # write a migrated copy
        npukit migrate . --in-place --report report.html  # change the files; --undo restores them
    """
    from npukit.machine.installed import installed_target
    from npukit.migrate import journal, show
    from npukit.migrate.goal import Goal
    from npukit.migrate.migration import migrate as work_out
    from npukit.report.report import counted, few

    if in_place + (output is not None) + diff + undo > 1:
        raise NpukitError("Choose one of --in-place, --output, --diff and --undo.")
    if undo:
        restored = journal.undo(path)
        text = translated(f"Restored {counted(len(restored), 'file')}: {few(restored)}.")
        show_result({"restored": restored}, text, json)
        return
    goal = Goal(style, target or installed_target(), distributed=distributed)
    with progress("reading", "files") as on_progress:
        result = work_out(path, goal, select or (), ignore or (), on_progress)
    if not result.files:
        raise NpukitError(f"There is no code to read in {path}: name the folder of a project.")
    if test is not None:
        result = _checked(result, path, test)
    if in_place:
        journal.write_in_place(result, allow_dirty)
    elif output is not None:
        journal.write_copy(result, path, output)
    if report is not None:
        _write_report(result, report)
    if json:
        show_result(show.as_data(result), "", json)
        return
    if not in_place and output is None:
        text = "".join(change.diff(result.root) for change in result.changes)
        print(printable(text) if sys.stdout.isatty() else text, end="")  # unchanged for programs, which may apply it
    print(show.as_text(result), file=sys.stderr if diff else sys.stdout)


def _write_report(migration: Migration, file: Path) -> None:
    """Write the report in the format of the file's suffix."""
    from npukit.migrate import show
    from npukit.report.json import to_json
    from npukit.report.migration_html import write_report
    from npukit.report.result import envelope

    if file.suffix == ".html":
        write_report(migration, file)
    elif file.suffix == ".json":
        write_text(file, to_json(envelope("npukit migrate", show.as_data(migration))) + "\n")
    else:
        write_text(file, show.as_markdown(migration))


def _checked(migration: Migration, path: Path, command: str) -> Migration:
    """The migration without files that no longer import; exits if the command fails after it."""
    from npukit.port.check import as_lines
    from npukit.port.check import check as run_checks

    checked = run_checks(migration, path, command, log=say)
    for line in as_lines(checked):
        print(printable(line), file=sys.stderr)
    if not checked.good:
        worst = next(run for run in checked.after if not run.passed)
        print(printable(f"\n{worst.output}"), file=sys.stderr)
        raise NpukitError(f"Nothing was written: `{command}` does worse after the migration, on {worst.device}.")
    return checked.migration
