"""Draw a real terminal session as SVG: `python scripts/make_terminal_picture.py docs/images/terminal.svg`."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COMMANDS = ("npukit analyze my_project", "npukit migrate my_project --output migrated")
WIDTH = 100
LINES = 18  # of the output of each command


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples" / "cuda_project", Path(folder) / "my_project")
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            for line in session(command, folder):
                console.print(Text.from_ansi(line))
    svg = console.export_svg(title="npukit")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "monospace")  # loads nothing
    Path(sys.argv[1]).write_text(svg, encoding="utf-8")


def session(command: str, folder: str) -> list[str]:
    """What the command prints; a long output without its middle."""
    variables = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    said = subprocess.run(
        ["script", "-qec", command, "/dev/null"], cwd=folder, env=variables, capture_output=True, text=True, check=True
    )
    lines = said.stdout.splitlines()
    plain = {line: Text.from_ansi(line).plain.strip() for line in lines}
    lines = [line for line in lines if plain[line] and "reading" not in line]  # no empty lines, no progress
    return lines if len(lines) <= LINES else [*lines[:7], "…", *lines[8 - LINES :]]


if __name__ == "__main__":
    main()
