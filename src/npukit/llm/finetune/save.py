"""Saves trained models in the usual formats, with everything needed to repeat the run."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from npukit.llm.config.options import Config
from npukit.llm.finetune.convert import make_plain
from npukit.llm.models.bottleneck import save_bottlenecks
from npukit.report.writing import write_json, write_text

RUN = "npukit.yaml"
# the files of a vision model besides those of its tokenizer
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
_LIBRARIES = ("npukit", "torch", "torch_npu", "transformers", "peft", "accelerate", "deepspeed")


def save_model(
    model: nn.Module, state: dict[str, Tensor], folder: Path, tokenizer: Any, base: Path, initial: Path | None = None
) -> None:
    """Write a PEFT adapter, or a model in transformers' format, with its tokenizer and image processor.

    `base` is the folder of the base model. With `initial`, the adapter is converted to a plain LoRA (see `convert.py`).
    """
    saved: Any = model
    if bottlenecks := getattr(model, "bottlenecks", None):
        save_bottlenecks(bottlenecks, state, folder)
    else:
        saved.save_pretrained(folder, state_dict=state)
    if initial:
        make_plain(folder, initial)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's has only headings, and a finished run gets a model card
    tokenizer.save_pretrained(folder)
    for name in PROCESSORS:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def save_run(config: Config, folder: Path) -> None:
    """Write the complete configuration, with which `npukit train` repeats the run, and the versions of packages."""
    import yaml

    plain = json.loads(config.model_dump_json())
    write_text(folder / RUN, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    write_json(folder / "versions.json", _versions())


def save_trainer_state(folder: Path, total_steps: int) -> None:
    """Write the log in the format of transformers' Trainer, for programs that read it."""
    names = ("step", "epoch", "loss", "grad_norm", "learning_rate")
    history = []
    for line in (folder / "log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        kept = {name: value for name, value in entry.items() if name in names or name.startswith("eval_")}
        if kept.keys() > {"step"}:
            history.append(kept)
    last = history[-1] if history else {}
    epochs = [entry["epoch"] for entry in history if "epoch" in entry]
    state = {
        "global_step": last.get("step", 0),
        "epoch": epochs[-1] if epochs else 0.0,
        "max_steps": total_steps,
        "log_history": history,
    }
    write_json(folder / "trainer_state.json", state)


def _versions() -> dict[str, str]:
    figures = {}
    for library in _LIBRARIES:
        try:
            figures[library] = version(library)
        except PackageNotFoundError:
            continue
    return figures
