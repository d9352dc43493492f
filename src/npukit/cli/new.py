"""npukit new"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import JsonOption
from npukit.cli.results import show


def new(
    name: Annotated[Path, typer.Argument(help="Folder to create.", show_default=False)], json: JsonOption = False
) -> None:
    """Create a small training project, ready to run.

    Examples:
        npukit new my-project
        cd my-project && npukit run --device sim train.py
    """
    from npukit.train.new import make_project

    make_project(name)
    folder, place = name.absolute().name, shlex.quote(str(name))
    train = f"cd {place} && npukit run train.py"
    text = f"Created {folder}. To train: {train} (add --device sim for a simulated NPU)"
    show({"folder": name, "files": sorted(file.name for file in name.iterdir()), "next": [train]}, text, json)
