"""A server of a tiny model with random weights, for benchmarks that ask how a server behaves and not what it says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT

CHAT = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<tool_call></tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if not (continue_final_message and loop.last) %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = "You are a helpful assistant. What is the capital of France? Paris. Explain why the sky is blue, please. "


@dataclass
class Running:
    """A server process and its address."""

    process: subprocess.Popen[str]
    url: str

    def resident(self) -> int:
        """The memory of the process that serves, in bytes; its launcher is its parent."""
        own = Path(f"/proc/{self.process.pid}")
        children = (own / "task" / str(self.process.pid) / "children").read_text().split()
        pid = children[0] if children else self.process.pid
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(match[1]) * 1024 if match else 0


def make_example(folder: Path) -> Path:
    """The small chat model of examples/finetune, with its rows in data/cards.jsonl; returns the model's folder."""
    command = [sys.executable, str(ROOT / "examples" / "finetune" / "make.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "model"


def make_tokenizer(texts: Iterable[str] = (TEXT,), words: int = 400) -> Any:
    """A byte-level tokenizer with ChatML's tokens, trained on these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=words, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT
    )


def make_model(folder: Path, longest: int = 8192, hidden: int = 64) -> Path:
    """A Qwen2 of two layers with four heads, always the same, with its tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=longest,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_adapter(model: Path, folder: Path, seed: int) -> Path:
    """A LoRA adapter with random weights, large enough to change what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def served(model: Path, options: Sequence[str] = ()) -> Iterator[Running]:
    """`npukit serve` on a free port, until the block ends."""
    command = [sys.executable, "-m", "npukit", "serve", str(model), "--port", "0", "--device", "cpu", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r" at (https?://\S+)", line):
                break
        else:
            raise SystemExit("".join(lines))
        threading.Thread(target=lambda: [print(line, end="") for line in process.stderr or ()], daemon=True).start()
        yield Running(process, match[1])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
