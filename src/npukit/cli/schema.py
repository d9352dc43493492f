"""npukit schema"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from npukit.cli.options import JsonOption, output_option
from npukit.cli.results import show
from npukit.report.writing import write_text

Kind = Literal["train", "use"]
Of = Annotated[Kind, typer.Argument(help="Files for training (train), or for chat, infer, serve and export (use).")]


def schema(
    of: Of = "train",
    output: Annotated[
        Path | None, output_option("Write the schema to this file instead of standard output.", "FILE")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print the JSON schema of npukit's YAML files, for editors.

    Editors use it where the first line of a YAML file names it: # yaml-language-server: $schema=npukit.schema.json.
    `npukit init` writes both.

    Examples:
        npukit schema --output npukit.schema.json  # of files for training
        npukit schema use > use.schema.json  # of files for chat, infer, serve and export
    """
    from npukit.report.json import to_json

    schema_json = schema_of(of)
    if output:
        write_text(output, f"{to_json(schema_json)}\n")
        show({"output": output}, f"Wrote {output}.", json)
    else:
        show({"schema": schema_json}, lambda: to_json(schema_json), json)


def schema_of(kind: Kind) -> dict[str, Any]:
    """The schema of files for training, or of those for using a model."""
    from npukit.llm.config.explain import json_schema
    from npukit.llm.config.options import Config
    from npukit.llm.config.use import Use

    return json_schema(Config if kind == "train" else Use, f"npukit {kind}")
