"""Saves adapters as plain LoRA whose initialisation has changed the model's weights (PiSSA, OLoRA, LoRA-GA).

Such an adapter fits only the changed weights. The difference between the trained and the initial adapter is a LoRA of
twice the rank that fits the original weights.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from npukit.report.writing import write_json

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
INITIAL = "initial-adapter.safetensors"


def keep_initial(model: Any, folder: Path) -> None:
    """Save the initial adapter, before the first step."""
    from peft import get_peft_model_state_dict

    values = get_peft_model_state_dict(model)
    save_file({name: value.detach().cpu().contiguous() for name, value in values.items()}, folder / INITIAL)


def make_plain(folder: Path, initial: Path) -> None:
    """Turn the adapter in a folder into a plain LoRA, given the file of the initial adapter."""
    after, before = load_file(folder / WEIGHTS), load_file(initial)
    for name in after:
        if ".lora_A." in name:
            after[name] = torch.cat([after[name], before[name].to(after[name])], dim=0)
        elif ".lora_B." in name:
            after[name] = torch.cat([after[name], -before[name].to(after[name])], dim=1)
    save_file({name: value.contiguous() for name, value in after.items()}, folder / WEIGHTS, {"format": "pt"})
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config["lora_alpha"] *= math.sqrt(2) if config["use_rslora"] else 2  # so that the scale stays the same
    config |= {"r": 2 * config["r"], "init_lora_weights": True, "lora_ga_config": None}
    write_json(folder / CONFIG, config)
