"""Tune LLaMA-Factory's own example of a LoRA run on the accelerator that is here.

    PYTHONPATH=src python -m benchmarks tune LLAMA_FACTORY [--layers 36] [--steps 8] [--folder tuned]

LLAMA_FACTORY is a checkout of that project: its examples/train_lora/qwen3_lora_sft.yaml is read as it is, with its
data. Only the model is another one, since there is no hub here: the shape of Qwen3-4B with random weights, and a
tokenizer trained on the same data. What `npukit tune` prints is the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.tiny_server import make_tokenizer

from npukit.facts.models import known_model

EXAMPLE = "examples/train_lora/qwen3_lora_sft.yaml"


def make_model(folder: Path, data: Path, layers: int) -> None:
    """The shape of Qwen3-4B, with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**(known_model("Qwen3-4B") or {}), "num_hidden_layers": layers}
    config = AutoConfig.for_model(**shape, eos_token_id=2)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    rows = json.loads((data / "alpaca_en_demo.json").read_text(encoding="utf-8"))
    texts = (text for row in rows for text in row.values() if isinstance(text, str))
    make_tokenizer(texts, words=16000).save_pretrained(folder)


def main(llama_factory: Path, layers: int = 36, steps: int = 8, folder: Path = Path("tuned")) -> None:
    data = llama_factory.resolve() / "data"
    model = folder.resolve() / "model"
    if not model.exists():
        make_model(model, data, layers)
    changes = [f"model_name_or_path={model}", f"dataset_dir={data}", f"output_dir={folder / 'output'}"]
    files = ["--trials", str(folder / "trials"), "--output", str(folder / "tuned.yaml")]
    command = [sys.executable, "-m", "npukit", "tune", str(llama_factory / EXAMPLE), *changes, *files]
    start = time.monotonic()
    if code := subprocess.run([*command, "--max-steps", str(steps)]).returncode:
        raise SystemExit(code)
    print(f"{time.monotonic() - start:.0f} s; the configuration that it wrote:")
    print((folder / "tuned.yaml").read_text(encoding="utf-8"))
