"""The `npukit` command: one module a verb. Verbs import what they need when they are called, so that help is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from npukit import __version__
from npukit.cli import analyze, container, devices, doctor, explain, launch, migrate, new, run, sim, train, verify
from npukit.errors import NpukitError

# Plain help starts twice as fast as help in boxes.
app = typer.Typer(
    name="npukit", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
SCRIPT_FOLLOWS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
app.command(context_settings=SCRIPT_FOLLOWS)(run.run)
app.command(context_settings=SCRIPT_FOLLOWS)(launch.launch)
app.command()(analyze.analyze)
app.command(context_settings={"allow_interspersed_args": False})(container.container)
app.command()(devices.devices)
app.command()(doctor.doctor)
app.command()(explain.explain)
app.command()(migrate.migrate)
app.command()(new.new)
for verb in (train.train, train.sft, train.pt):
    app.command(context_settings={"ignore_unknown_options": True})(verb)
app.command()(verify.verify)
app.add_typer(sim.app, name="sim")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"npukit {__version__}")
        raise typer.Exit


@app.callback()
def npukit(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Take PyTorch projects from CUDA to Ascend NPU, and try them on a simulated NPU first."""


def main() -> None:
    """Run the command; what the user can mend is one sentence and exit code 2, anything else keeps its traceback."""
    try:
        app()
    except NpukitError as error:
        print(f"npukit: {error}", file=sys.stderr)
        sys.exit(2)
