"""Write what was trained in the formats that others read, and what is needed to train it again."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from npukit.llm.config.options import Config
from npukit.llm.finetune.convert import make_plain
from npukit.report.writing import write_json, write_text

RUN = "npukit.yaml"
# What a model that sees has beside its tokenizer.
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
_LIBRARIES = ("npukit", "torch", "torch_npu", "transformers", "peft", "accelerate", "deepspeed")


def save_model(
    model: nn.Module, state: dict[str, Tensor], folder: Path, tokenizer: Any, base: Path, initial: Path | None = None
) -> None:
    """A PEFT adapter, or the whole model as transformers writes it, with its tokenizer and its image processor.

    `base` is the folder of the model that it began with. With `initial`, an adapter as its difference from that one.
    """
    saved: Any = model
    saved.save_pretrained(folder, state_dict=state)
    if initial:
        make_plain(folder, initial)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's has nothing but headings; a finished run gets a card
    tokenizer.save_pretrained(folder)
    for name in PROCESSORS:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def save_run(config: Config, folder: Path) -> None:
    """The resolved configuration, which `npukit train` takes as it is, and the versions that it was made with."""
    import yaml

    plain = json.loads(config.model_dump_json())
    write_text(folder / RUN, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    write_json(folder / "versions.json", _versions())


def save_trainer_state(folder: Path, total_steps: int) -> None:
    """The log in the form of transformers' Trainer, for programs that draw and compare such logs."""
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
