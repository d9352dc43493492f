"""Create a first configuration: three answers become a commented YAML file that is ready for training."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.reading.read import read

CUTOFF = 1024
EPOCHS = 3
ROWS_A_STEP = 16  # for all devices together
STEPS = 50  # with fewer steps than this, fewer rows per step train better
ENOUGH_TO_SHARE = 50  # with fewer rows, none are set apart for evaluation
HELD_OUT = 0.05


@dataclass(frozen=True)
class Initial:
    """The text of the file, and the configuration that it contains."""

    text: str
    config: Config
    rows: int | None  # training rows, if they are local


def initial(model: str, data: str, devices: int = 1, file: str = "train.yaml") -> Initial:
    """The configuration for an existing model and data. Raises every mistake that `npukit train` would find.

    >>> initial("models/qwen2", "rows.jsonl").config.tuning.method
    'lora'
    """
    from npukit.llm.data.count import count_rows

    config = _checked({"model.path": model, "data.train": data})
    counted = count_rows(config)
    rows = counted.count if counted else None
    chosen: dict[str, Any] = {
        "task": config.task,
        "model.path": model,
        "tuning.method": "lora",
        "tuning.rank": 8,
        "data.train": data,
        "data.cutoff": CUTOFF,
        "training.output": f"output/{_short(model)}",
        "training.epochs": EPOCHS,
        "training.batch_size": 1,
        "training.accumulation": _accumulation(devices, counted.count * counted.tokens / CUTOFF if counted else None),
        "training.learning_rate": 1e-4,
        "training.warmup": 0.03,
        "training.log_every": 10,
    }
    if rows is None or rows >= ENOUGH_TO_SHARE:
        chosen |= {"data.validation": HELD_OUT, "training.eval_every": "epoch", "training.load_best": True}
    return Initial(_as_yaml(chosen, devices, file), _checked(chosen), rows)


def _accumulation(devices: int, packs: float | None) -> int:
    """The usual number of rows per step, or fewer if the data would last for only a few steps."""
    most = max(1, ROWS_A_STEP // devices)
    return most if packs is None else max(1, min(most, int(packs * EPOCHS / (STEPS * devices))))


def _checked(options: Mapping[str, Any]) -> Config:
    """The options as a configuration. Rows of plain text are for pre-training."""
    words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items()]
    words = [word for word in words if not word.startswith("task=")]
    tasks = [options["task"]] if "task" in options else ["sft", "pt"]
    mistakes: Mistakes | None = None
    for task in tasks:
        try:
            return read(None, words, os.environ, verb=task).config
        except Mistakes as error:
            mistakes = mistakes or error
    assert mistakes is not None
    raise mistakes


COMMENTS = {
    "task": "sft: conversations, pt: plain text",
    "model.path": "a folder, or a name on the Hugging Face Hub (model.hub: modelscope for ModelScope)",
    "tuning.method": "lora trains a small adapter, full all weights, freeze the last layers",
    "tuning.rank": "size of the adapter",
    "data.train": "a file, a folder, a hub name, or a list of them",
    "data.validation": "share of the rows to evaluate on",
    "data.cutoff": "longest row, in tokens",
    "training.output": "checkpoints, logs and the trained model",
    "training.batch_size": "rows per device in a forward pass; raise it while memory lasts",
    "training.accumulation": "forward passes per step",
    "training.learning_rate": "1e-5 is usual for method: full",
    "training.warmup": "share of the steps",
    "training.load_best": "write the model of the best evaluation, not of the last step",
    "training.log_every": "steps",
}


def _as_yaml(chosen: Mapping[str, Any], devices: int, file: str) -> str:
    command = f"npukit train {file}" + (f" --devices {devices}" if devices > 1 else "")
    lines = [
        f"# {command} trains; --dry-run shows memory and steps first, --device sim needs no NPU.",
        "# npukit train --explain describes every option. Run the same command again to resume.",
    ]
    group = ""
    for key in sorted(chosen, key=lambda key: ORDER.index(key.split(".")[0])):
        above, _, name = key.rpartition(".")
        if above != group:
            lines.append(f"{above}:")
            group = above
        line = f"{'  ' * bool(above)}{name}: {_plain(chosen[key])}"
        lines.append(f"{line:<34}  # {COMMENTS[key]}" if key in COMMENTS else line)
    lines.append("  # parallel: fsdp2                 # splits a model that does not fit on one device")
    return "\n".join(lines) + "\n"


ORDER = ["task", "model", "tuning", "data", "training"]


def _plain(value: Any) -> str:
    import yaml

    if isinstance(value, float):
        return f"{value:.1e}" if value < 1e-3 else str(value)
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...", "").strip()


def _short(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2]) or "model"
