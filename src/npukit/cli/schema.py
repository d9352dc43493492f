"""npukit schema"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from npukit.cli.options import output_option
from npukit.report.writing import write_text

Of = Annotated[
    Literal["train", "use"], typer.Argument(help="Files for training, or for chat, infer, serve and export.")
]


def schema(
    of: Of = "train",
    output: Annotated[Path | None, output_option("Write it to this file instead of standard output.", "FILE")] = None,
) -> None:
    """Print the JSON schema of npukit's YAML files, for editors.

    Editors use it where the first line of a YAML file names it: # yaml-language-server: $schema=npukit.schema.json.
    `npukit init` writes both.

    Examples:
        npukit schema --output npukit.schema.json  # of files for training
        npukit schema use > use.schema.json  # of files for chat, infer, serve and export
    """
    from npukit.llm.config.explain import json_schema
    from npukit.llm.config.options import Config
    from npukit.llm.config.use import Use
    from npukit.report.json import to_json

    text = to_json(json_schema(Config if of == "train" else Use, f"npukit {of}"))
    if output:
        write_text(output, f"{text}\n")
    else:
        print(text)
