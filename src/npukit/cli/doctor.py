"""npukit doctor"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from npukit.doctor.examine import Diagnosis


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    fix_script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the remedies that are commands to a shell script.")
    ] = None,
) -> None:
    """Tell whether this machine can train on NPUs, and if not, what to mend first.

    Ends with code 0 if it can and 1 if it cannot.
    """
    from npukit.doctor.diagnosis_text import as_text
    from npukit.doctor.diagnosis_text import fix_script as script_of
    from npukit.doctor.examine import examine

    diagnosis = examine()
    if fix_script:
        _write(fix_script, script_of(diagnosis))
    if json:
        from json import dumps

        print(dumps(_as_json(diagnosis), indent=2, ensure_ascii=False))
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(as_text(diagnosis, color, min(shutil.get_terminal_size((100, 24)).columns, 120)))
    raise typer.Exit(0 if diagnosis.good else 1)


def _write(file: Path, text: str) -> None:
    if not file.parent.is_dir():
        raise NpukitError(f"There is no folder {file.parent} to write {file.name} to.")
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(file)


def _as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "good": diagnosis.good,
        "simulated": diagnosis.simulated,
        "first": diagnosis.first.code if diagnosis.first else None,
        "checks": [
            {
                "title": check.title,
                "state": check.state.value,
                "says": check.says,
                "findings": [
                    {
                        **{
                            name: getattr(trouble.finding, name)
                            for name in ("code", "what", "why", "remedy", "evidence")
                        },
                        "severity": trouble.finding.severity.value,
                        "commands": list(trouble.commands),
                    }
                    for trouble in check.troubles
                ],
            }
            for check in diagnosis.checks
        ],
    }
