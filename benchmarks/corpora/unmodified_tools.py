"""Which tools train on a simulated NPU as they are: `npukit run --device sim`, no shim, no migration, no npukit inside.

    python -m benchmarks unmodified_tools [--only NAME] [--at NAME=PATH ...]

Every tool trains a few steps of a small chat model made on the spot. PATH is a folder for PYTHONPATH that holds the
tool, where it is not installed: `--at LLaMA-Factory=CHECKOUT/src TRL=FOLDER`. A tool runs if it ends well, with
finite losses and its parameters on an NPU.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.corpora.guides import prepare

TRAINER = """
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling
from transformers import Trainer, TrainingArguments
tokenizer = AutoTokenizer.from_pretrained("model")
rows = Dataset.from_list([dict(tokenizer("A 910B3 has 64 GB."))] * 16)
settings = TrainingArguments("out", max_steps=4, logging_steps=1, report_to=[], per_device_train_batch_size=4)
trainer = Trainer(AutoModelForCausalLM.from_pretrained("model"), settings, train_dataset=rows,
                  data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))
"""
SFT = """
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
rows = Dataset.from_list([{"prompt": "A 910B3:", "completion": " 64 GB."}] * 16)
settings = SFTConfig("out", max_steps=4, logging_steps=1, report_to=[], per_device_train_batch_size=4, bf16=False)
trainer = SFTTrainer("model", settings, train_dataset=rows)
"""
DPO = """
from datasets import Dataset
from trl import DPOConfig, DPOTrainer
rows = Dataset.from_list([{"prompt": "A 910B3:", "chosen": " 64 GB.", "rejected": " 32 GB."}] * 16)
settings = DPOConfig("out", max_steps=4, logging_steps=1, report_to=[], per_device_train_batch_size=4, bf16=False)
trainer = DPOTrainer("model", args=settings, train_dataset=rows)
"""
TRAIN = """
trainer.train()
print("DEVICE", next(trainer.model.parameters()).device)
"""
LIGHTNING = """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        loss = self.layer(batch[0]).square().mean()
        print("{'loss': %s}" % loss.item(), "\\nDEVICE", self.device)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 8)), batch_size=8)
settings = {"max_steps": 4, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
lightning.Trainer(accelerator="auto", devices=1, **settings).fit(Model(), rows)
"""
FACTORY = {
    "model_name_or_path": "model", "stage": "sft", "do_train": True, "finetuning_type": "lora", "template": "qwen",
    "dataset": "identity", "dataset_dir": "data", "output_dir": "out", "max_steps": 4, "logging_steps": 1,
    "per_device_train_batch_size": 2, "overwrite_output_dir": True, "report_to": "none", "bf16": True,
}  # fmt: skip
SWIFT = (
    "--model model --model_type qwen2 --template qwen --dataset rows.jsonl --tuner_type lora --output_dir out "
    "--max_steps 4 --logging_steps 1 --per_device_train_batch_size 2 --max_length 512 --torch_dtype bfloat16"
)


@dataclass(frozen=True)
class Tool:
    """One tool, and the script or module that trains with it."""

    name: str
    command: tuple[str, ...]
    script: str = ""


TOOLS = (
    Tool("transformers, Trainer", ("train.py",), TRAINER + TRAIN),
    Tool("TRL, SFT", ("train.py",), SFT + TRAIN),
    Tool("TRL, DPO", ("train.py",), DPO + TRAIN),
    Tool("Lightning", ("train.py",), LIGHTNING),
    Tool("LLaMA-Factory, LoRA", ("-m", "llamafactory.cli", "train", "factory.yaml")),
    Tool("ms-swift, LoRA", ("-m", "swift.cli.sft", *SWIFT.split())),
)
# What a tool that does not show its model's device says of it where it starts.
DEVICE = re.compile(r"DEVICE (\S+)|device: (\w+:\d+)|device='?(\w+:\d+)|'device_map': '(\w+:\d+)'")
LOSS = re.compile(r"'loss': '?([\d.naife+-]+)")


def judge(tool: Tool, path: str) -> tuple[str, str]:
    """Whether it runs on an NPU, and its losses or the last line of its error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        (folder / "train.py").write_text(tool.script)
        (folder / "factory.yaml").write_text(json.dumps(FACTORY))
        command = [sys.executable, "-m", "npukit", "run", "--device", "sim", *tool.command]
        pythonpath = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": pythonpath, "OMP_NUM_THREADS": "1", "DISABLE_VERSION_CHECK": "1"}
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    output = ended.stdout + ended.stderr
    losses = [float(loss) for loss in LOSS.findall(output)]
    devices = ["".join(groups) for groups in DEVICE.findall(output)]
    if ended.returncode or not losses or not all(map(math.isfinite, losses)):
        return "no", next((line for line in reversed(output.splitlines()) if "Error" in line), output[-200:].strip())
    where = devices[-1] if devices else "an unknown device"
    answer = "yes" if where.startswith("npu") else f"on {where}"
    return answer, f"{len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}"


def main(
    only: Annotated[str, "tools with this in their name"] = "", at: Annotated[tuple[str, ...], "NAME=PATH"] = ()
) -> None:
    paths = dict(pair.split("=", 1) for pair in at)
    for tool in TOOLS:
        if only not in tool.name:
            continue
        path = next((paths[name] for name in paths if tool.name.startswith(name)), "")
        runs, why = judge(tool, path)
        print(f"{tool.name:24} {runs:12} {why}", flush=True)
