"""Hold plans against figures that others have published: the speed and the memory of training, on NPUs and GPUs.

python -m benchmarks plan_published prints each claim with its source, the published figure, the range of `npukit plan`
and whether the figure is inside; every other row of speed and memory was used to calibrate, the others and those that
were added afterwards were not.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from npukit.llm.config.options import Config
from npukit.performance.plan.job import plan

DATA = Path(__file__).with_name("published_plans.yaml")
GIB = 2**30


@dataclass(frozen=True)
class Claim:
    """A published figure and what npukit plans for it."""

    text: str
    source: str
    published: float
    low: float
    high: float
    calibrates: bool
    added: bool

    @property
    def inside(self) -> bool:
        return self.low <= self.published <= self.high


def config_of(row: dict[str, Any], sizes: dict[str, list[int]], folder: Path) -> Config:
    """The configuration of a row; a model that is given by its sizes gets a folder with config.json."""
    model = row["model"]
    if model in sizes:
        layers, hidden, inner, heads, vocabulary = sizes[model]
        values = {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "vocab_size": vocabulary,
            "tie_word_embeddings": True,
        }
        (folder / model).mkdir(exist_ok=True)
        (folder / model / "config.json").write_text(json.dumps(values))
        model = str(folder / model)
    method = row.get("method", "full")
    return Config(
        model={"path": model} | {name: row[name] for name in ("dtype", "quantize") if name in row},
        data={"train": "rows.jsonl", "cutoff": row["length"]},
        tuning={"method": method} | ({"targets": row["targets"]} if "targets" in row else {}),
        training={
            "batch_size": row.get("batch", 1),
            "accumulation": row.get("accumulation", 1),
            "activation_checkpointing": row["checkpointing"],
            "precision": "bf16",
            "parallel": row.get("parallel", "fsdp2" if row["devices"] > 1 else "ddp"),
            "max_steps": 1,
        },
    )


def claims(data: dict[str, Any], folder: Path) -> Iterator[Claim]:
    """Every row with its range."""
    for kind in ("speed", "memory", "allocated"):
        for number, row in enumerate(data[kind]):
            made = plan(config_of(row, data["sizes"], folder), row["devices"], row["card"], row.get("nodes", 1))
            assert made.memory
            if kind == "speed":
                assert made.time
                low, high = made.time.tokens_per_second(made.tokens_per_step / made.devices)
            else:
                share = made.memory.allocated / made.memory.total if kind == "allocated" else 1
                low, high = (bytes * share / GIB for bytes in made.memory.range)
            words = [f"{row['devices']} x {row['card']}", row["model"], row.get("method", "full"), row["length"]]
            text = ", ".join(map(str, words)) + ", checkpointing" * row["checkpointing"]
            calibrates = number % 2 == 0 and kind != "allocated" and "added" not in row
            yield Claim(f"{kind}: {text}", row["source"], row["published"], low, high, calibrates, "added" in row)


def main() -> None:
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        rows = list(claims(data, Path(folder)))
    print("| claim | source | published | plan | inside |\n|---|---|---:|---:|---|")
    for row in rows:
        print(f"| {row.text} | {row.source} | {row.published:,} | {row.low:,.5g} to {row.high:,.5g} | ", end="")
        print(f"{'yes' if row.inside else 'no'} |")
    for name, half, added in (("calibrated on", True, False), ("not looked at", False, False), ("added", False, True)):
        figures = [row for row in rows if (row.calibrates, row.added) == (half, added)]
        print(f"{name}: {sum(row.inside for row in figures)} of {len(figures)} inside")
    print(f"widest range: {max(row.high / row.low for row in rows):.2f}")
