"""npukit new"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def new(name: Annotated[Path, typer.Argument(help="Folder to create.", show_default=False)]) -> None:
    """Create a small training project, ready to run.

    Examples:
        npukit new my-project
        cd my-project && npukit run --device sim train.py
    """
    from npukit.train.new import make_project

    make_project(name)
    made, place = name.absolute().name, shlex.quote(str(name))
    print(f"Created {made}. To train: cd {place} && npukit run train.py (add --device sim for a simulated NPU)")
