"""npukit schema"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Of = Annotated[
    Literal["train", "use"], typer.Argument(help="Files for training, or for chat, infer, serve and export.")
]


def schema(of: Of = "train") -> None:
    """Print the JSON schema of npukit's YAML files, for editors.

    Write it to a file, and name that in the first line of the YAML:
    # yaml-language-server: $schema=npukit.schema.json
    """
    from npukit.llm.config.explain import json_schema
    from npukit.llm.config.options import Config
    from npukit.llm.config.use import Use
    from npukit.report.json import to_json

    print(to_json(json_schema(Config if of == "train" else Use, f"npukit {of}")))
