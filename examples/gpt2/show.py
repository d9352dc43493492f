"""Draw the loss of a finished training, and say in a table how it went: show.py FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.table import Table

matplotlib.use("Agg")
from matplotlib import pyplot


def main() -> None:
    folder = Path(sys.argv[1])
    result = json.loads((folder / "training.json").read_text())
    losses = result["losses"]
    picture = folder / "loss.png"
    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(range(1, len(losses) + 1), losses, color="#c7000b")
    devices = f"{len(result['devices'])} x {result['devices'][0]}"
    axes.set(xlabel="step", ylabel="loss", title=f"Tiny GPT-2, DDP over hccl on {devices} (simulated)")
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)

    table = Table("what", "value", title="Trained on simulated NPUs")
    table.add_row("devices", devices)
    table.add_row("parameters", f"{result['parameters']:,}")
    table.add_row("loss", f"{losses[0]:.3f} at step 1, {losses[-1]:.3f} at step {len(losses)}")
    table.add_row(
        "speed here (not a card's)", f"{result['tokens_per_second']:,.0f} tokens/s, {result['seconds']:.0f} s"
    )
    table.add_row("peak memory per device", f"{result['peak_memory_mib']:.0f} MiB, from torch.npu's allocator")
    table.add_row("it writes", result["written"].strip())
    table.add_row("loss plot", str(picture))
    Console().print(table)


if __name__ == "__main__":
    main()
