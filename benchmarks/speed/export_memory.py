"""How much memory does it take to merge a LoRA adapter into a 7B model? Beside it: transformers and PEFT.

    python -m benchmarks export_memory FOLDER [--model Qwen2-7B] [--peer]

The weights have the model's shapes in bf16 and are zeros, in files with holes; merged, Qwen2-7B takes 15 GB of disk.
With --peer, PEFT's merge_and_unload does the same, which takes as much memory as the model.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

from npukit.facts.models import known_model

PEER = """
import sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
PeftModel.from_pretrained(model, sys.argv[2]).merge_and_unload().save_pretrained(sys.argv[3])
"""


def make_model(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """Files of the right size that take no room on the disk."""
    from npukit.llm.config.options import ModelOptions
    from npukit.llm.models.outline import look_at

    folder.mkdir(parents=True)
    config = {"architectures": ["Qwen2ForCausalLM"], "dtype": "bfloat16", **(known_model(name) or {})}
    (folder / "config.json").write_text(json.dumps(config))
    outline = look_at(ModelOptions(path=str(folder), from_config=True))
    assert outline is not None
    names = list(outline.shapes)
    shards = [names[number::4] for number in range(4)]
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = folder / f"model-{number:05}-of-00004.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name in shard:
            size = 2
            for length in outline.shapes[name]:
                size *= length
            header[name] = {"dtype": "BF16", "shape": list(outline.shapes[name]), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with file.open("wb") as opened:
            opened.write(len(text).to_bytes(8, "little") + text)
            opened.truncate(8 + len(text) + at)
        weight_map |= dict.fromkeys(shard, file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return dict(outline.shapes)


def make_adapter(folder: Path, model: Path, shapes: dict[str, tuple[int, ...]], rank: int = 16) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    tensors = {}
    for name, shape in shapes.items():
        if "_proj.weight" in name:
            module = "base_model.model." + name.removesuffix(".weight")
            tensors[f"{module}.lora_A.weight"] = torch.randn(rank, shape[1])
            tensors[f"{module}.lora_B.weight"] = torch.randn(shape[0], rank)
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 32, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(model)}))


def measure(name: str, command: list[str]) -> None:
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    outcome = done.stdout.strip() or done.stderr.strip().splitlines()[-1:]
    print(
        f"{name}: exit {done.returncode}, {time.monotonic() - start:.0f} s, peak {peak:.2f} GiB; {outcome}", flush=True
    )


def main(
    folder: Annotated[Path, "is made, and removed at the end"],
    model: Annotated[str, "the shape"] = "Qwen2-7B",
    peer: bool = False,
) -> None:
    shapes = make_model(folder / "model", model)
    make_adapter(folder / "lora", folder / "model", shapes)
    command = ["export", str(folder / "lora"), "--output", str(folder / "merged")]
    measure("npukit export", [sys.executable, "-m", "npukit", *command])
    shutil.rmtree(folder / "merged", ignore_errors=True)
    if peer:
        places = [str(folder / name) for name in ("model", "lora", "peer")]
        measure("PEFT merge_and_unload", [sys.executable, "-c", PEER, *places])
    shutil.rmtree(folder)
