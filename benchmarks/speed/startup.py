"""How long `npukit --help` and `--version` take, against importing the libraries that they are made with.

    python -m benchmarks startup [--runs 15]

Prints the ratio of medians; the aim is at most 2.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

PEER = [sys.executable, "-c", "import typer, rich.console"]


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(runs: int = 15) -> None:
    commands = {"import typer, rich.console": PEER}
    for option in ("--help", "--version"):
        commands[f"npukit {option}"] = [sys.executable, "-m", "npukit", option]
    # Taken in turns, so that whatever else the machine does meets all of them alike.
    times = [{name: seconds(command) for name, command in commands.items()} for _ in range(runs)]
    medians = {name: statistics.median(row[name] for row in times) for name in commands}
    peer = medians["import typer, rich.console"]
    for name, median in medians.items():
        print(f"{name:<28} {median * 1000:6.0f} ms   {median / peer:.2f} times")
