"""Run what users of LLaMA-Factory and ms-swift run on NPUs, as they write it, on simulated ones.

    python benchmarks/other_tools.py [--only NAME]

A LLaMA-Factory YAML of an Ascend guide, and every `swift sft` of ms-swift's page about NPUs: LoRA and full, one card
and four, ZeRO-2 and ZeRO-3. Only the model, a small one made on the spot, and the data are others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
YAML = (ROOT / "tests" / "data" / "qwen1_5_lora_sft_ds.yaml").read_text()
FLAGS = "--model model --dataset rows.jsonl --num_train_epochs 5 --train_type lora --output_dir output"
DETAILS = "--learning_rate 1e-4 --gradient_accumulation_steps 16 --save_steps 100 --eval_steps 100"
TORCHRUN = "--nproc_per_node 1 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port 7007"
SFT = f"npukit sft {FLAGS} {DETAILS}"
FOUR = {"NPROC_PER_NODE": "4", "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}
COMMANDS: dict[str, tuple[str, dict[str, str]]] = {
    "LLaMA-Factory, LoRA": ("npukit train qwen1_5_lora_sft_ds.yaml", {}),
    "LLaMA-Factory, torchrun": (f"torch.distributed.run {TORCHRUN} -m npukit train qwen1_5_lora_sft_ds.yaml", {}),
    "ms-swift, LoRA": (SFT, {"ASCEND_RT_VISIBLE_DEVICES": "0"}),
    "ms-swift, full": (SFT.replace("train_type lora", "train_type full"), {"ASCEND_RT_VISIBLE_DEVICES": "0"}),
    "ms-swift, 4 cards": (SFT, FOUR),
    "ms-swift, 4 cards, full": (SFT.replace("train_type lora", "train_type full"), FOUR),
    "ms-swift, 4 cards, ZeRO-2": (f"{SFT} --deepspeed zero2", FOUR),
    "ms-swift, 4 cards, ZeRO-3": (f"{SFT} --deepspeed zero3", FOUR),
}


def prepare(folder: Path) -> None:
    """The model and the data, where the commands look for them."""
    subprocess.run(
        [sys.executable, ROOT / "examples" / "finetune" / "make.py", folder], check=True, capture_output=True
    )
    lines = (folder / "data" / "cards.jsonl").read_text().splitlines()
    (folder / "rows.jsonl").write_text("\n".join(lines[:32]) + "\n")
    rows = [json.loads(line) for line in lines]
    (folder / "data" / "identity.json").write_text(json.dumps(rows[:20]))
    (folder / "data" / "alpaca_en_demo.json").write_text(json.dumps(rows[20:40]))
    info = {name: {"file_name": f"{name}.json"} for name in ("identity", "alpaca_en_demo")}
    (folder / "data" / "dataset_info.json").write_text(json.dumps(info))
    (folder / "qwen1_5_lora_sft_ds.yaml").write_text(YAML.replace("qwen/Qwen1.5-7B", "model"))


def run(command: str, variables: dict[str, str], folder: Path) -> dict[str, object]:
    """What the run's log says of itself."""
    before = {*folder.rglob("log.jsonl")}
    started = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    ended = subprocess.run(
        [sys.executable, "-m", *command.split(), "--device", "sim"],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"{command}\nended with code {ended.returncode}\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
    (log,) = {*folder.rglob("log.jsonl")} - before or before
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    return {"seconds": time.monotonic() - started, "steps": lines[-1]["step"], "loss": losses[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those with this in their name")
    only = parser.parse_args().only
    for name, (command, variables) in COMMANDS.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder))
            found = run(command, variables, Path(folder))
        print(f"{name:28} {found['steps']:>4} steps  loss {found['loss']:.4f}  {found['seconds']:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
