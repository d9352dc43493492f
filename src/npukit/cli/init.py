"""npukit init"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import DevicesOption, ForceOption, JsonOption, file_place
from npukit.cli.results import show
from npukit.errors import NpukitError

SCHEMA = "npukit.schema.json"


def init(
    file: Annotated[Path, typer.Argument(help="File to write.", callback=file_place)] = Path("train.yaml"),
    model: Annotated[
        str, typer.Option(help="Folder of a model, or a name such as Qwen/Qwen2-0.5B.", show_default=False)
    ] = "",
    data: Annotated[
        str, typer.Option(help="Rows to train on: a file, a folder or a data set's name.", show_default=False)
    ] = "",
    devices: DevicesOption = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write a commented YAML file for `npukit train`.

    Asks for the model, the data and the number of devices, unless they are given as options. The JSON schema with which
    editors complete and check the file is written beside it, as npukit.schema.json.

    Examples:
        npukit init  # asks, and writes train.yaml
        npukit init lora.yaml --model Qwen/Qwen2-0.5B --data rows.jsonl --devices 8
    """
    from npukit.facts.models import known_model
    from npukit.launch.devices import choose
    from npukit.llm.reading.initial import initial
    from npukit.llm.start import check_hubs
    from npukit.report.report import counted
    from npukit.report.writing import write_text

    if file.exists() and not force:
        raise NpukitError(f"{file} already exists: choose another file, or replace it with --force.")
    model = model or _ask("Model (a folder, or a hub name such as Qwen/Qwen2-0.5B)", "--model")
    data = data or _ask("Data (a .jsonl, .json, .csv or .parquet file, a folder or a hub name)", "--data")
    available = choose().count
    if devices is None:
        devices = int(_ask("Devices", "--devices", str(available))) if sys.stdin.isatty() else available
    first = initial(model, data, devices, str(file))
    if known_model(model) is None:  # a known model can be planned with, even if it cannot be downloaded
        check_hubs(first.config)
    schema = file.with_name(SCHEMA)
    _write_schema(schema)
    write_text(file, f"# yaml-language-server: $schema={SCHEMA}\n{first.text}")
    rows = f" for {counted(first.rows, 'row')}" if first.rows is not None else ""
    command = f"npukit train {shlex.quote(str(file))}" + (f" --devices {devices}" if devices > 1 else "")
    commands = [f"{command} --dry-run", command]
    text = f"Wrote {file}{rows}, and {schema} for editors. Next:\n" + "\n".join(f"  {command}" for command in commands)
    show({"file": file, "schema": schema, "rows": first.rows, "devices": devices, "next": commands}, text, json)


def _write_schema(file: Path) -> None:
    """Write the schema of this version; it replaces only the schema of another version."""
    from npukit.cli.schema import schema_of
    from npukit.report.json import to_json
    from npukit.report.writing import write_text

    schema = schema_of("train")
    if file.exists() and f'"title": "{schema["title"]}"' not in file.read_text(encoding="utf-8", errors="replace"):
        raise NpukitError(f"{file} is not npukit's, and the schema for editors belongs there: move it away.")
    write_text(file, to_json(schema) + "\n")


def _ask(question: str, option: str, default: str | None = None) -> str:
    if not sys.stdin.isatty():
        raise NpukitError(f"Give {option}, or run this in a terminal, where npukit asks for it.")
    answer: str = typer.prompt(question, default=default)
    return answer.strip()
