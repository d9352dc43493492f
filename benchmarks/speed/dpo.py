"""DPO of Qwen2-7B's shape with LoRA on one GPU, npukit beside TRL: real tokens a second, and memory.

    PYTHONPATH=src:SITE python -m benchmarks dpo [--shape tiny]

SITE is a folder with TRL, pydantic and what else the machine lacks. New weights, LoRA of rank 8 on all linear layers,
bf16, 8 pairs a step: a question and two answers of random tokens, log-normal lengths, about 430 tokens a row. Padding
does not count as a token. Every contestant runs in a process of its own. npukit computes the reference once, before
the first step; the table has its speed without and with that, once for every pair that was trained on. TRL computes
the reference in every step, as it does unless told otherwise. npukit packs; both run with their own defaults (npukit
keeps all activations, TRL computes them again) and then as the other does.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from benchmarks.contest import result, results

from npukit.facts.models import known_model

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2-7b": known_model("Qwen2-7B") or {},
    "tiny": {
        "model_type": "qwen2",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
COMMON = {"tie_word_embeddings": False, "max_position_embeddings": 32768, "bos_token_id": None, "eos_token_id": None}
PAIRS, LONGEST, RATE = 8, 2048, 1e-4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
Pair = tuple[list[int], list[int], list[int]]


def pairs(number: int, words: int) -> list[Pair]:
    """Questions and two answers to each, as tokens."""
    random = np.random.default_rng(0)
    mean = 5.0 if words > 1000 else 2.5
    lengths = random.lognormal(mean, 0.8, (number, 3)).clip(8, LONGEST // 2).astype(int)
    return [tuple(random.integers(1, words, length).tolist() for length in row) for row in lengths]


def tokens_in(some: list[Pair]) -> int:
    return sum(2 * len(question) + len(better) + len(worse) for question, better, worse in some)


def wait() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def with_npukit(shape: dict[str, Any], batch: int, steps: int, warm: int, recompute: bool) -> dict[str, float]:
    from npukit.llm.config.options import Config
    from npukit.llm.data.collate import Collator
    from npukit.llm.data.encode import SEPARATOR, Encoded
    from npukit.llm.data.rows import Chosen
    from npukit.llm.data.tokenised import Rows
    from npukit.llm.finetune.train import make_model
    from npukit.llm.tasks.losses.preference import add_reference
    from npukit.llm.tasks.task import named
    from npukit.train import Trainer

    made = pairs(steps * PAIRS, shape["vocab_size"])
    rows = [
        np.array(
            [*(~token for token in question), *better, SEPARATOR, *(~token for token in question), *worse], np.int32
        )
        for question, better, worse in made
    ]
    chosen = Chosen([Rows.of([Encoded(row) for row in rows])], np.zeros(len(rows), np.int32), np.arange(len(rows)))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({**shape, **COMMON}))
        training = {"output": folder, "max_steps": steps, "batch_size": batch, "accumulation": PAIRS // batch}
        training |= {
            "activation_checkpointing": recompute,
            "log_every": 1,
            "precision": "bf16" if DEVICE == "cuda" else "fp32",
            "save_every": None,
            "plot": False,
            "shuffle": False,
        }
        config = Config.model_validate(
            {
                "task": "dpo",
                "model": {"path": folder, "from_config": True},
                "data": {"train": ["made here"], "cutoff": LONGEST},
                "training": {**training, "learning_rate": RATE, "workers": 0},
            }
        )
        model = make_model(config, folder, torch.device(DEVICE))
        learning = named("dpo").learning(config, chosen, None, Collator(True, 0))
        times: list[float] = []

        def clocked(module: Any, given: dict[str, Any]) -> Any:
            times.append(wait())
            return learning.loss(module, given)

        trainer = Trainer(
            model,
            config.training.model_copy(update={"compile": False}),
            learning.train,
            loss=clocked,
            weight=learning.weight,
            size=learning.size,
            collate=learning.collate,
            save_model=lambda *_: None,
            item="tokens",
        )
        compute = functools.partial(add_reference, learning.train, learning.collate, trainer.parallel, batch)
        compute(Path(folder, "first.npy"), lambda _: None)  # with which the layers are compiled
        began = wait()
        compute(Path(folder, "reference.npy"), lambda _: None)
        of_reference = wait() - began
        trainer.train()
    # Up to the beginning of the last pass: after it the adapter is saved.
    seconds = times[-1] - times[warm * PAIRS // batch]
    counted = tokens_in(made[warm * PAIRS : -batch])
    with_reference = seconds + of_reference * counted / tokens_in(made)
    return result(counted / seconds, with_reference=counted / with_reference)


def with_trl(shape: dict[str, Any], batch: int, steps: int, warm: int, checkpointing: bool) -> dict[str, float]:
    from datasets import Dataset
    from peft import LoraConfig
    from torch.utils.data import SequentialSampler
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    made = pairs(steps * PAIRS, shape["vocab_size"])
    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            times.append(wait())

    class InOrder(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    from tokenizers import Tokenizer, models

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>")))
    words.pad_token = words.eos_token = "<pad>"
    data = [{"prompt_ids": one, "chosen_ids": two, "rejected_ids": three} for one, two, three in made]
    with torch.device(DEVICE):
        model = Qwen2ForCausalLM._from_config(
            Qwen2Config(**{**shape, **COMMON}), dtype=torch.bfloat16 if DEVICE == "cuda" else torch.float32
        )
    with tempfile.TemporaryDirectory() as folder:
        options = DPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=PAIRS // batch,
            learning_rate=RATE,
            bf16=DEVICE == "cuda",
            use_cpu=DEVICE == "cpu",
            gradient_checkpointing=checkpointing,
            logging_steps=10**6,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            max_length=LONGEST,
            remove_unused_columns=False,
        )
        adapter = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
        own = {"train_dataset": Dataset.from_list(data), "processing_class": words, "peft_config": adapter}
        InOrder(model, args=options, callbacks=[Clock()], **own).train()
        ended = wait()
    return result(tokens_in(made[warm * PAIRS :]) / (ended - times[warm]))


def contestants(shape: dict[str, Any]) -> dict[str, Callable[[], dict[str, float]]]:
    return {
        "npukit, 4 pairs x 2": functools.partial(with_npukit, shape, 4, 12, 4, False),
        "npukit, 4 pairs x 2, recomputing activations": functools.partial(with_npukit, shape, 4, 12, 4, True),
        "npukit, 1 pair x 8, recomputing activations": functools.partial(with_npukit, shape, 1, 12, 4, True),
        "TRL, 4 pairs x 2": functools.partial(with_trl, shape, 4, 6, 2, True),
        "TRL, 1 pair x 8": functools.partial(with_trl, shape, 1, 6, 2, True),
        "TRL, 1 pair x 8, without gradient checkpointing": functools.partial(with_trl, shape, 1, 6, 2, False),
    }


def main(shape: Annotated[str, SHAPES] = "qwen2-7b") -> None:
    os.environ |= QUIET
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}\n| | tokens/s | with the reference | npukit is | peak GiB |")
    print("|---|---|---|---|---|", flush=True)
    ours = 0.0
    for name, got in results(contestants(SHAPES[shape])):
        if "failed" in got:
            print(f"| {name} | failed: {got['failed']} |", flush=True)
            continue
        speed = got["tokens_per_second"]
        whole = got.get("with_reference", speed)
        ours = ours or whole
        print(
            f"| {name} | {speed:,.0f} | {whole:,.0f} | {ours / whole:.2f} times | {got['peak_gib']:.1f} |", flush=True
        )
