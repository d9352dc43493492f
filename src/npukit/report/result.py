"""The output of a command with --json: one object with a schema version, and a result, an error, or both.

A process that a command starts writes its result or error to the file in NPUKIT_RESULT. The command waits for it and
prints both.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from npukit import __version__
from npukit.errors import NpukitError
from npukit.report.json import to_json
from npukit.report.writing import write_text

SCHEMA_VERSION = 1  # increased if an existing field changes its meaning or is removed
FILE = "NPUKIT_RESULT"


def envelope(command: str, result: Any, exit_code: int = 0, error: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object to print for a result.

    >>> envelope("npukit plan", {"fits": True})
    {'schema_version': 1, 'npukit': '0.1.0', 'command': 'npukit plan', 'exit_code': 0, 'result': {'fits': True}}
    """
    data = {"schema_version": SCHEMA_VERSION, "npukit": __version__, "command": command, "exit_code": exit_code}
    return {**data, "result": result, **({"error": error} if error else {})}


def error_data(code: str, message: str, remedy: str = "") -> dict[str, Any]:
    """The object for an error: its kind, the sentence, and a command that helps, if there is one."""
    return {"code": code, "message": message, "remedy": remedy or None}


def data_of(error: NpukitError) -> dict[str, Any]:
    """The same for an NpukitError.

    >>> data_of(NpukitError("There is no file a.yaml."))["code"]
    'invalid_input'
    """
    return error_data(error.code, str(error), error.remedy)


def is_awaited() -> bool:
    """Whether the command that started this process waits for its result."""
    return FILE in os.environ


def hand_back(part: Literal["result", "error"], value: Any) -> None:
    """Pass the result or the error of this process to the command that started it, if that waits for one.

    >>> hand_back("result", {"rows": 3})
    """
    if name := os.environ.get(FILE):
        write_text(Path(name), to_json({**handed_back(Path(name)), part: value}))


def handed_back(file: Path) -> dict[str, Any]:
    """Read what a process passed back."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return dict(json.loads(text)) if text else {}
