"""npukit new"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def new(name: Annotated[Path, typer.Argument(help="The folder to make.", show_default=False)]) -> None:
    """Make a small training project: a script, a configuration, a README. It runs as it is, on made-up data."""
    from npukit.train.new import make_project

    make_project(name)
    made, place = name.absolute().name, shlex.quote(str(name))
    print(f"Made {made}. Train it: cd {place} && npukit run train.py (with --device sim on a simulated NPU)")
