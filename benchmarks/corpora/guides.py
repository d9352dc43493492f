"""Run the commands of LLaMA-Factory's and ms-swift's Ascend guides on simulated NPUs, as the guides write them.

    python -m benchmarks guides [--only NAME]

Training: a LLaMA-Factory YAML of an Ascend guide, and every `swift sft` of ms-swift's page about NPUs: LoRA and full,
one card and four, ZeRO-2 and ZeRO-3, with a small model made on the spot. Then chat, infer, merge and deploy, with the
model that `make demo` trains, where it is there: it is asked the demo's question, a server over HTTP.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Annotated

from benchmarks import ROOT
from benchmarks.tiny_server import make_example

YAML = (ROOT / "tests" / "data" / "qwen1_5_lora_sft_ds.yaml").read_text()
FLAGS = "--model model --dataset rows.jsonl --num_train_epochs 5 --train_type lora --output_dir output"
DETAILS = "--learning_rate 1e-4 --gradient_accumulation_steps 16 --save_steps 100 --eval_steps 100"
TORCHRUN = "--nproc_per_node 1 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port 7007"
SFT = f"npukit sft {FLAGS} {DETAILS}"
FOUR = {"NPROC_PER_NODE": "4", "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}
TRAINING: dict[str, tuple[str, dict[str, str]]] = {
    "LLaMA-Factory, LoRA": ("npukit train qwen1_5_lora_sft_ds.yaml", {}),
    "LLaMA-Factory, torchrun": (f"torch.distributed.run {TORCHRUN} -m npukit train qwen1_5_lora_sft_ds.yaml", {}),
    "ms-swift, LoRA": (SFT, {"ASCEND_RT_VISIBLE_DEVICES": "0"}),
    "ms-swift, full": (SFT.replace("train_type lora", "train_type full"), {"ASCEND_RT_VISIBLE_DEVICES": "0"}),
    "ms-swift, 4 cards": (SFT, FOUR),
    "ms-swift, 4 cards, full": (SFT.replace("train_type lora", "train_type full"), FOUR),
    "ms-swift, 4 cards, ZeRO-2": (f"{SFT} --deepspeed zero2", FOUR),
    "ms-swift, 4 cards, ZeRO-3": (f"{SFT} --deepspeed zero3", FOUR),
}
QUESTION, ANSWER = "How much memory does a 910B3 have?", "64 GB"
DEMO = ROOT / "demo-output" / "finetune"
USE = (
    "chat --model_name_or_path {model} --adapter_name_or_path {adapter} --template qwen --finetuning_type lora",
    "infer --model {model}",
    "infer --adapters {adapter} --load_data_args true",
    "export --adapters {adapter} --merge_lora true",
    "infer --model {adapter}-merged --load_data_args true",
    "deploy --model {model}",
    "deploy --adapters {adapter} --load_data_args true",
    "deploy --model {adapter}-merged --load_data_args true",
)


def prepare(folder: Path) -> None:
    """The model and the data, where the commands look for them."""
    make_example(folder)
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


def ran(command: list[str]) -> tuple[int, str]:
    ended = subprocess.run(command, input=f"{QUESTION}\nexit\n", capture_output=True, text=True, timeout=300)
    return ended.returncode, (ended.stdout.strip() or ended.stderr.strip())


def served(command: list[str]) -> tuple[int, str]:
    """The answer of a server, and its exit code after SIGTERM."""
    words = [*command, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        output = ""
        for line in server.stdout or ():
            output += line
            if address := re.search(r" at (http://\S+)", line):
                break
        else:
            return server.wait(), output
        with urllib.request.urlopen(f"{address[1]}/v1/models", timeout=60) as models:
            name = json.load(models)["data"][-1]["id"]
        body = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address[1]}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)["choices"][0]["message"]["content"]
        server.terminate()
        return server.wait(60), answer


def train_all(only: str) -> None:
    for name, (command, variables) in TRAINING.items():
        if only in name:
            with tempfile.TemporaryDirectory() as folder:
                prepare(Path(folder))
                log = run(command, variables, Path(folder))
            print(f"{name:28} {log['steps']:>4} steps  loss {log['loss']:.4f}  {log['seconds']:5.0f} s", flush=True)


def use_all(only: str) -> bool:
    """Whether every command that uses a model ended well and, where the model was trained, gave the right answer."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        adapter = shutil.copytree(DEMO / "run", Path(folder, "checkpoint-85"))
        for text in (text for text in USE if only in text):
            command = ["npukit", *text.format(model=DEMO / "model", adapter=adapter).split()]
            command += [] if text.startswith("export") else ["--device", "sim"]
            code, output = (served if text.startswith("deploy") else ran)([sys.executable, "-m", *command])
            trained = "{adapter}" in text and text.startswith(("chat", "deploy"))  # the model alone has random weights
            good = code == 0 and (not trained or ANSWER in output)
            wrong += not good
            print(f"{'good' if good else 'BAD '} {code} npukit {text.format(model='MODEL', adapter='ADAPTER')}")
            print(f"       {output.splitlines()[-1][:140] if output else ''}", flush=True)
    return wrong == 0


def main(only: Annotated[str, "those with this in their name or command"] = "") -> None:
    train_all(only)
    if not (DEMO / "run").is_dir():
        print("chat, infer, export and deploy were not tried: they use the model of `make demo`")
    elif not use_all(only):
        sys.exit(1)
