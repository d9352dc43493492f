"""npukit report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from npukit.cli.options import JsonOption, file_place, output_option
from npukit.cli.results import show
from npukit.errors import NpukitError

FILE = Path("npukit-report.json")
TAIL = 200  # lines of a log


def report(
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", show_default=False, help=f"Add the last {TAIL} lines of this log."),
    ] = None,
    output: Annotated[Path, output_option("File for the report.", "FILE", str(FILE), file_place)] = FILE,
    json: JsonOption = False,
) -> None:
    """Write a file with everything that a bug report needs.

    It contains versions, the findings of `npukit doctor`, relevant environment variables and, with --log, the end
    of a log and the known errors in it. Secrets, user and host names are removed, and paths are shortened; still,
    read it before you send it.

    Examples:
        npukit report
        npukit report --log train.log
    """
    import os
    from json import loads

    from npukit.doctor.data import as_data
    from npukit.doctor.examine import examine
    from npukit.facts.variables import is_reported
    from npukit.machine.versions import versions
    from npukit.report.json import to_json
    from npukit.report.redact import redacted
    from npukit.report.result import envelope
    from npukit.report.writing import write_json

    data = {
        "versions": versions(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if is_reported(name)},
        "doctor": as_data(examine()),
        **(_about(log) if log else {}),
    }
    result = redacted(loads(to_json(data)))
    write_json(output, envelope("npukit report", result))
    text = f"Wrote {output}. Read it, then attach it to your issue: npukit removed the secrets that it recognises."
    show({**result, "file": str(output)}, text, json)


def _about(log: Path) -> dict[str, Any]:
    """The end of a log, and what npukit knows about the errors in all of it."""
    from collections import deque

    from npukit.explain import Search

    search = Search()
    try:
        with log.open("rb") as file:
            search.read(log.name, file)
        with log.open(encoding="utf-8", errors="replace") as lines:
            tail = [line.rstrip("\n") for line in deque(lines, TAIL)]
    except OSError as error:
        raise NpukitError(f"Cannot read {log}: {(error.strerror or str(error)).lower()}.") from None
    return {"log": tail, "explanations": search.explanations, "first_error_line": search.first_error_line}
