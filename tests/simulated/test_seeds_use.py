"""What the guides for NPUs do with a model after training: chat, infer, merge, deploy, as they stand there.

The model is a tiny one, its adapter is trained here, and all of it runs on a simulated NPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forks import Forks

Npukit = Callable[..., subprocess.CompletedProcess[str]]

TRAIN = "--num_train_epochs 2 --train_type lora --learning_rate 1e-3 --split_dataset_ratio 0.2 --add_version false"
ROWS = [{"instruction": f"What is {number} plus one?", "output": f"It is {number + 1}."} for number in range(20)]


@pytest.fixture(scope="module")
def npukit(forks: Forks) -> Npukit:
    def run(folder: Path, command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        device = [] if command.startswith("export") else ["--device", "sim"]
        words = ["npukit", *command.split(), *device]
        done = forks.start(*words, cwd=folder, given=given, ASCEND_RT_VISIBLE_DEVICES="0").wait()
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def trained(npukit: Npukit, tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and the run that fine-tuned it in `output`."""
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "model").symlink_to(tiny_qwen2)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    npukit(folder, f"sft --model model --dataset rows.jsonl --output_dir output {TRAIN}")
    return folder


def test_llama_factorys_chat(npukit: Npukit, trained: Path) -> None:
    """Seed 002: llamafactory-cli chat with the model, the adapter, a template and the kind of tuning."""
    flags = "--model_name_or_path model --adapter_name_or_path output --template qwen --finetuning_type lora"
    output = npukit(trained, f"chat {flags} --max_new_tokens 8", "What is 3 plus one?\nclear\nexit\nnever asked\n")
    assert len(output.stdout.splitlines()) >= 2 and "npukit chat" in output.stderr


def test_ms_swifts_infer_of_the_validation_rows(npukit: Npukit, trained: Path) -> None:
    """Seed 004: swift infer --adapters … --load_data_args true."""
    done = npukit(
        trained, "infer --adapters output --load_data_args true --max_new_tokens 8 --result_path answers.jsonl"
    )
    rows = [json.loads(line) for line in (trained / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and all(row["label"].startswith("It is") for row in rows), "a fifth of twenty rows"
    assert "accuracy" in done.stdout


@pytest.fixture(scope="module")
def merged(npukit: Npukit, trained: Path) -> str:
    npukit(trained, "export --adapters output --merge_lora true")
    assert (trained / "output-merged/model.safetensors").is_file()
    return "output-merged"


@pytest.fixture
def server(forks: Forks, trained: Path, merged: str) -> Iterator[int]:
    """Seed 004: swift deploy --model …-merged --load_data_args true."""
    command = f"deploy --model {merged} --load_data_args true --host 127.0.0.1 --port 18734 --device sim"
    process = forks.start("npukit", *command.split(), cwd=trained)
    yield 18734
    os.kill(process.pid, signal.SIGTERM)
    process.wait()


def test_ms_swifts_deploy(server: int) -> None:
    question = {"model": "output-merged", "max_tokens": 8, "messages": [{"role": "user", "content": "Who?"}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server}/v1/chat/completions",
        json.dumps(question).encode(),
        {"Content-Type": "application/json"},
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                answer = json.load(response)
            break
        except OSError:
            time.sleep(0.5)
    assert answer["choices"][0]["message"]["role"] == "assistant" and answer["usage"]["completion_tokens"] > 0


def test_gpt2_is_trained_and_sampled_from(npukit: Npukit, tiny_tokenizer: Any, tmp_path: Path) -> None:
    """Seed 000: a GPT-2 is trained on text; then it goes on with the beginning of one."""
    from transformers import GPT2Config

    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": len(tiny_tokenizer)}
    GPT2Config(**sizes, bos_token_id=0, eos_token_id=0).save_pretrained(tmp_path / "gpt2")
    tiny_tokenizer.save_pretrained(tmp_path / "gpt2")
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 300)
    options = "data.cutoff=64 training.max_steps=20 training.learning_rate=3e-3 training.output=run tuning.method=full"
    npukit(tmp_path, f"train task=pt model.path=gpt2 model.from_config=true data.train=text.txt {options}")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "The quick brown"}) + "\n")
    npukit(tmp_path, "infer run rows.jsonl --output out.jsonl --max-tokens 8")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 1 and rows[0]["response"]
