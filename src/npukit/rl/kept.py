"""Record answers: all of them in completions.jsonl, and the best and worst of a step on the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npukit.report.report import counted
from npukit.report.terminal import printable
from npukit.report.writing import disk_errors_named, write_text
from npukit.rl.samples import RolloutSample

FILE = "completions.jsonl"
SHOWN = 400  # characters of a text on the terminal


class Kept:
    """completions.jsonl in the folder of a run, with one line per answer."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE

    def forget_after(self, step: int) -> None:
        """Drop the lines that a run wrote after this step, before it was killed or restarted."""
        if self.file.exists():
            lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(self.file, "".join(line for line in lines if _step(line) <= step))

    def add(self, step: int, samples: Sequence[RolloutSample], names: Sequence[str], totals: Sequence[float]) -> None:
        """Write the answers of a generation, at the first step that learns from them."""
        with disk_errors_named(self.file), self.file.open("a", encoding="utf-8") as out:
            for sample, total in zip(samples, totals, strict=True):
                out.write(json.dumps(_line(step, sample, names, total), ensure_ascii=False) + "\n")


def _line(step: int, sample: RolloutSample, names: Sequence[str], total: float) -> dict[str, Any]:
    rewards = zip(names, sample.rewards, strict=True)
    return {
        "step": step,
        "messages": [*sample.prompt.messages, *sample.messages],
        "reward": _plain(total),
        "rewards": {name: _plain(value) for name, value in rewards},
        "advantage": sample.advantage,
        "tokens": len(sample.ids),
        "is_cut": sample.is_cut,
    }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf  # an incomplete line at the end of the file


def view(step: int, samples: Sequence[RolloutSample], names: Sequence[str]) -> str:
    """The best and the worst answer of a generation."""
    ordered = sorted(samples, key=lambda sample: sample.advantage)
    parts = [_shown("best", ordered[-1], names), _shown("worst", ordered[0], names)]
    return f"step {step}  answers\n" + "\n".join(parts)


def _shown(which: str, sample: RolloutSample, names: Sequence[str]) -> str:
    scores: Mapping[str, float] = dict(zip(names, sample.rewards, strict=True))
    scored = "  ".join(f"{name} {value:.3g}" for name, value in scores.items())
    asked = str(sample.prompt.messages[-1].get("content", "")) if sample.prompt.messages else ""
    head = f"  {which}: advantage {sample.advantage:.3g}  {scored}  {counted(len(sample.ids), 'token')}"
    texts = [_indented(str(message["content"])) for message in sample.messages]
    return "\n".join([head, _indented(asked), *texts])


def _indented(text: str) -> str:
    short = printable(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
    return "\n".join(f"    {line}" for line in short.splitlines() or [""])
