"""Tune LLaMA-Factory's own example of a LoRA run on the accelerator that is here.

    PYTHONPATH=src python -m benchmarks tune LLAMA_FACTORY [--layers 36] [--steps 8] [--folder tuned]

LLAMA_FACTORY is a checkout of that project: its examples/train_lora/qwen3_lora_sft.yaml is read as it is, with its
data. Only the model is another one, since there is no hub here: the shape of Qwen3-4B with random weights, and a
tokenizer trained on the same data. What `npukit tune` prints is the result.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_factory", type=Path)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path("tuned"))
    wanted = parser.parse_args()
    data = wanted.llama_factory.resolve() / "data"
    model = wanted.folder.resolve() / "model"
    if not model.exists():
        make_model(model, data, wanted.layers)
    changes = [f"model_name_or_path={model}", f"dataset_dir={data}", f"output_dir={wanted.folder / 'output'}"]
    files = ["--trials", str(wanted.folder / "trials"), "--output", str(wanted.folder / "tuned.yaml")]
    command = [sys.executable, "-m", "npukit", "tune", str(wanted.llama_factory / EXAMPLE), *changes, *files]
    start = time.monotonic()
    subprocess.run([*command, "--max-steps", str(wanted.steps)], check=True)
    print(f"{time.monotonic() - start:.0f} s; the configuration that it wrote:")
    print((wanted.folder / "tuned.yaml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
