"""The `npukit` command: one module per verb. Verbs import what they need when they are called, so that help is fast."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from npukit import __version__
from npukit.cli.help import QuietOption, VerboseOption, usage_sentence
from npukit.cli.results import forget, print_error
from npukit.cli.verbs import Verbs, extra_of, new_app
from npukit.errors import NpukitError
from npukit.launch.imports import quicken_imports
from npukit.quiet import hide_libraries, verbosity
from npukit.report.result import data_of, error_data
from npukit.report.terminal import open_closed_streams, printable, say

app = new_app(name="npukit", cls=Verbs)
WAYS_OUT = {
    "win32": "Windows: install it in WSL 2 (`wsl --install`), or use a Linux container",
    "darwin": "macOS: use a Linux container (`docker run -it -v $PWD:/code -w /code python:3.11 bash`)",
}
READING = ("analyze", "migrate", "explain")  # verbs that only read and write text
INTERRUPTED = 130  # 128 + SIGINT, the shell's convention
_UsageError: Any = typer.BadParameter.__mro__[1]  # click's, or the one of typer's own copy of click


def _print_version(is_asked: bool) -> None:
    if not is_asked:
        return
    print(f"npukit {__version__}")
    if sys.platform not in WAYS_OUT:
        from npukit.machine.versions import versions

        names = ("Python", "platform", "torch", "torch_npu", "CANN", "driver", "cards")
        shown = versions()
        print("\n".join(f"{name} {printable(shown[name])}" for name in names))
    raise typer.Exit


@app.callback()
def npukit(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of npukit, torch, torch_npu, CANN and the cards.",
        ),
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Take PyTorch projects from CUDA to Ascend NPUs, and try them on a simulated NPU first."""


def main() -> None:
    """Run the command. What the user can fix is one sentence; any other error keeps its traceback."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that is not UTF-8
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that unfinished work is cleaned up
    forget()
    quicken_imports()
    try:
        check_system(sys.argv[1:])
        with hide_libraries():
            code = app(prog_name="npukit", standalone_mode=False)
    except NpukitError as error:
        if verbosity() == "verbose":
            import traceback

            traceback.print_exc()
        code = _fail(data_of(error), error.exit_code)
    except (OSError, ModuleNotFoundError) as error:
        from npukit.packages import missing_package
        from npukit.report.writing import disk_full

        known = disk_full(error) or missing_package(error, extra_of(sys.argv[1:]))
        if known is None:
            _fail(error_data("internal", f"{type(error).__name__}: {error}"), 1, printed=True)
            raise
        code = _fail(data_of(known), known.exit_code)
    except _UsageError as error:
        code = _fail(error_data("usage", *usage_sentence(error)), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        _fail(error_data("internal", f"{type(error).__name__}: {error}"), 1, printed=True)
        raise
    if code == INTERRUPTED:
        _fail(error_data("interrupted", "interrupted"), code)
    sys.exit(code)


def check_system(arguments: list[str]) -> None:
    """Refuse a current folder that was deleted, and verbs that need Linux; those that read and rewrite code also run on
    macOS.
    """
    verb = next((word for word in arguments if not word.startswith("-")), None)
    if verb is None:
        return
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise NpukitError("The current folder was deleted: change to another one.") from error
    way_out = WAYS_OUT.get(sys.platform)
    if way_out is None or (sys.platform == "darwin" and verb in READING):
        return
    raise NpukitError(f"npukit {verb} needs Linux, and this is {way_out}.")


def _fail(error: dict[str, Any], code: int, printed: bool = False) -> int:
    """Report an error as a sentence, unless its traceback is shown, and with --json as JSON too."""
    print_error(error, code, sys.argv[1:])
    if not printed:
        say(error["message"])
    return code
