"""The loss curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npukit.report.writing import whole_file


def plot_loss(history: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Plot the training loss and, if there are any, those of evaluations; False without matplotlib.

    A pale line is the logged loss, a strong one its running mean.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    logged = [(row["step"], row["loss"]) for row in history if "loss" in row]
    evaluated = [(row["step"], row["eval_loss"]) for row in history if "eval_loss" in row]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    if logged:
        steps, losses = zip(*logged, strict=True)
        axes.plot(steps, losses, color="tab:blue", alpha=0.35 if len(losses) > 20 else 1, label="loss")
        if len(losses) > 20:
            axes.plot(steps, _running_mean(losses), color="tab:blue", label="loss, running mean")
    if evaluated:
        axes.plot(*zip(*evaluated, strict=True), color="tab:orange", marker="o", markersize=4, label="evaluation")
    axes.set(xlabel="step", ylabel="loss")
    axes.grid(alpha=0.3)
    if logged or evaluated:
        axes.legend()
    with whole_file(path) as beside:
        figure.savefig(beside, dpi=120, format="png")
    return True


def _running_mean(values: Sequence[float]) -> list[float]:
    mean, weight, smooth = 0.0, 0.0, []
    for value in values:
        mean, weight = 0.9 * mean + 0.1 * value, 0.9 * weight + 0.1
        smooth.append(mean / weight)
    return smooth
