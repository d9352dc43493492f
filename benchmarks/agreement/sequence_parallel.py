"""Train with the tokens of each row shared by two and four devices, and compare the losses with those of one.

    python -m benchmarks sequence_parallel [--device cpu|sim] [--steps 20]

A random four-layer Qwen2 with four heads, two of them for keys, in fp32: packed rows, padded rows, LoRA and DPO. The
rows of a step are the same, so only rounding may differ. Aim: every loss within 1e-4.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tiny_server import make_example

JOBS = {
    "packed": ["tuning.method=full", "data.packing=true", "data.cutoff=250"],  # not a multiple of four
    "padded": ["tuning.method=full", "data.packing=false"],
    "lora": ["tuning.method=lora", "data.packing=true"],
    "dpo": ["task=dpo", "tuning.method=full"],
}


def options(folder: Path, job: str, steps: int) -> Iterator[str]:
    yield f"model.path={folder / 'model'}"
    yield f"data.train={folder / ('pairs' if job == 'dpo' else 'data/cards')}.jsonl"
    yield from JOBS[job]
    yield from ("training.precision=fp32", "training.log_every=1", "training.plot=false", "training.save_every=null")
    yield from (f"training.max_steps={steps}", "training.epochs=9", "data.cache=false")


def losses(folder: Path, job: str, device: str, devices: int, shared: int, batch: int, steps: int) -> list[float]:
    output = folder / f"{job}-{devices}-{shared}"
    command = [sys.executable, "-m", "npukit", "train", "--device", device, "--devices", str(devices)]
    command += [*options(folder, job, steps), f"training.output={output}", f"training.batch_size={batch}"]
    command += [f"training.sequence_parallel={shared}"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    log = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in log if "loss" in entry]


def make(folder: Path) -> None:
    make_example(folder)
    rows = [json.loads(line) for line in (folder / "data" / "cards.jsonl").read_text().splitlines()]
    pairs = [
        {"query": one["instruction"], "response": one["output"], "rejected_response": two["output"]}
        for one, two in itertools.pairwise(rows)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def main(device: str = "cpu", steps: int = 20, only: str = ",".join(JOBS)) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        for job in only.split(","):
            alone = losses(folder, job, device, 1, 1, 4, steps)
            for devices, shared, batch in ((2, 2, 4), (4, 4, 4), (4, 2, 2)):
                actual = losses(folder, job, device, devices, shared, batch, steps)
                worst = max(abs(a - b) for a, b in zip(alone, actual, strict=True))
                print(
                    f"{job} on {device}: {devices} devices, rows shared by {shared}: {len(actual)} losses, "
                    f"{actual[0]:.4f} → {actual[-1]:.4f}, at most {worst:.1e} from those of one device",
                    flush=True,
                )
