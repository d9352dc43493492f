"""The `npukit` command: one module a verb. Verbs import what they need when they are called, so that help is quick."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from npukit import __version__
from npukit.cli.verbs import Verbs, new_app
from npukit.errors import NpukitError
from npukit.report.terminal import printable

app = new_app(name="npukit", cls=Verbs)
INTERRUPTED = 130  # 128 + SIGINT, as shells count
_UsageError: Any = typer.BadParameter.__mro__[1]  # click's, or the one of typer's own copy of click


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"npukit {__version__}")
        raise typer.Exit


@app.callback()
def npukit(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take PyTorch projects from CUDA to Ascend NPUs, and try them on a simulated NPU first."""


def main() -> None:
    """Run the command. What the user can fix is one sentence; any other error keeps its traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that is not UTF-8
    try:
        code = app(prog_name="npukit", standalone_mode=False)
    except NpukitError as error:
        code = _say(str(error), error.exit_code)
    except _UsageError as error:
        code = _say_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        _say("interrupted", code)
    sys.exit(code)


def _say(text: str, code: int) -> int:
    print(f"npukit: {printable(text)}", file=sys.stderr)
    return code


def _say_usage(error: Any) -> int:
    where = error.ctx.command_path if error.ctx is not None else "npukit"
    return _say(f"{error.format_message().rstrip('.')}. See `{where} --help`.", 2)
