"""npukit's training beside nanoGPT's and transformers' on one GPU: real tokens a second, and memory.

    python -m benchmarks train --nanogpt CHECKOUT_OF_NANOGPT [--only gpt2|gpt2_as_nanogpt|qwen2|qwen3_moe]

GPT-2 124M, new weights, 32 rows of 1,024 tokens a step: as transformers configures it, with its dropout; and as nanoGPT
does, with 50,304 words and none. Qwen2-7B's shape, and that of Qwen3-30B-A3B with 16 of its 48 layers, new weights,
LoRA of rank 8 on all linear layers, rows of log-normal length (about 400 tokens on average), 16 rows or as many tokens
a step. Padding does not count as a token. Every contestant runs in a process of its own, bf16, AdamW, on random tokens.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from benchmarks.contest import result, results

from npukit.facts.models import known_model

GPT2 = {"model_type": "gpt2"}
GPT2_AS_NANOGPT = {
    **GPT2,
    "vocab_size": 50304,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
QWEN2 = {
    **(known_model("Qwen2-7B") or {}),
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
QWEN3_MOE = {
    **(known_model("Qwen3-30B-A3B") or {}),
    "num_hidden_layers": 16,  # a third of them: quicker to make, and a layer's share of the time is the same
    "norm_topk_prob": True,
    "max_position_embeddings": 32768,
}
QWEN2_FLOPS = 4 * 7.07e9  # a token: forward and backward through frozen weights, the embedding's table left out
PACK = 4096
PADDING = 0
JOBS = ("gpt2", "gpt2_as_nanogpt", "qwen2", "qwen3_moe")
Result = dict[str, float]


def ceiling() -> float:
    """TFLOP/s of a large bf16 matrix product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = timed(lambda: a @ b, warm=5, runs=30)
    return 2 * 8192**3 / seconds / 1e12


def timed(work: Callable[[], Any], warm: int, runs: int) -> float:
    """Seconds of one run."""
    for _ in range(warm):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(runs):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / runs


def rows_of_random_length(number: int) -> list[np.ndarray[Any, Any]]:
    """Token rows whose lengths are log-normal, 16 to 4,096, about 400 on average."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(5.5, 1.0, number).clip(16, 4096).astype(int)
    return [random.integers(1, 150000, length).astype(np.int32) for length in lengths]


# npukit


class Packs:
    """Rows as npukit packs them."""

    def __init__(self, rows: Sequence[np.ndarray[Any, Any]], length: int) -> None:
        from npukit.llm.data.pack import pack

        self._rows, self._length = rows, length
        self._packs = pack(np.array([len(row) for row in rows]), length, seed=0)

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        from npukit.llm.data.rows import packed_row

        return packed_row([self._rows[row] for row in self._packs[number].tolist()], self._length, PADDING)


def train_with_npukit(
    shape: dict[str, Any], rows: Sequence[np.ndarray[Any, Any]], length: int, tuning: str, batch: int
) -> Result:
    from npukit.llm.config.options import Config
    from npukit.llm.data.collate import Collator, tokens, weight
    from npukit.llm.finetune.train import make_model
    from npukit.llm.models.flops import flops_per_token
    from npukit.llm.tasks.losses.tokens import loss_of
    from npukit.train import Trainer

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(shape))
        training = {"output": folder, "max_steps": 40, "batch_size": batch, "log_every": 10, "precision": "bf16"}
        config = Config.model_validate(
            {
                "model": {"path": folder, "from_config": True},
                "tuning": {"method": tuning},
                "data": {"train": ["made here"], "cutoff": length},
                "training": {**training, "save_every": None, "plot": False, "epochs": 100, "compile": False},
            }
        )
        compiled = config.training.model_copy(update={"compile": None})
        model = make_model(
            config.model_copy(update={"training": compiled}),
            folder,
            torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        )
        trainer = Trainer(
            model,
            config.training,
            Packs(rows, length),
            loss=functools.partial(loss_of, longest=length),
            weight=weight,
            size=functools.partial(tokens, pad_id=PADDING),
            collate=Collator(True, PADDING, length),
            save_model=lambda *_: None,
            flops_per_item=flops_per_token(model),
            item="tokens",
        )
        trainer.train()
        lines = [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]
    speeds = [line["items_per_second"] for line in lines if "items_per_second" in line][-2:]
    return result(float(np.mean(speeds)))


def npukit_gpt2(shape: dict[str, Any]) -> Result:
    rows = list(np.random.default_rng(0).integers(0, 50000, (640, 1024)).astype(np.int32))
    return train_with_npukit(shape, rows, 1024, "full", 32)


def npukit_lora(shape: dict[str, Any]) -> Result:
    return train_with_npukit(shape, rows_of_random_length(1000), PACK, "lora", 1)


# the others


def nanogpt(checkout: Path, bias: bool) -> Result:
    """Its own model, optimizer and loop body, compiled, as its train.py has them; GPT-2 is the one with biases."""
    spec = importlib.util.spec_from_file_location("nanogpt", checkout / "model.py")
    assert spec and spec.loader
    code = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt"] = code
    spec.loader.exec_module(code)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    model: Any = code.GPT(code.GPTConfig(vocab_size=50304, dropout=0.0, bias=bias)).cuda()
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda")
    compiled: Any = torch.compile(model)
    batches: Any = iter(lambda: torch.randint(50000, (33, 1024), pin_memory=True), None)

    def step() -> None:
        tokens = next(batches).cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss: Any = compiled(tokens[:32], tokens[1:])[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return result(32 * 1024 / timed(step, warm=10, runs=30))


def transformers_trainer(
    model: Any, rows: Sequence[np.ndarray[Any, Any]], batch: int, accumulation: int, **more: Any
) -> Result:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    steps, warm = more.pop("steps"), more.pop("warm")
    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            torch.cuda.synchronize()
            times.append(time.perf_counter())

    def padded(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(example["input_ids"]) for example in examples)
        ids = torch.zeros(len(examples), longest, dtype=torch.long)
        labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
        for number, example in enumerate(examples):
            row = torch.as_tensor(example["input_ids"], dtype=torch.long)
            ids[number, : len(row)], labels[number, : len(row)], mask[number, : len(row)] = row, row, 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            bf16=True,
            logging_steps=10**6,
            save_strategy="no",
            report_to=[],
            optim="adamw_torch_fused",
            dataloader_num_workers=2,
            train_sampling_strategy="sequential",
            **more,
        )
        data: Any = [{"input_ids": row} for row in rows]
        Trainer(model=model, args=arguments, train_dataset=data, data_collator=padded, callbacks=[Clock()]).train()
    used = rows[warm * batch * accumulation : steps * batch * accumulation]
    return result(sum(map(len, used)) / (times[-1] - times[warm - 1]))


def transformers_gpt2(shape: dict[str, Any]) -> Result:
    from transformers import GPT2Config, GPT2LMHeadModel

    rows = list(np.random.default_rng(0).integers(0, 50000, (32 * 30, 1024)).astype(np.int32))
    model = GPT2LMHeadModel(GPT2Config(**shape)).cuda()
    return transformers_trainer(model, rows, 32, 1, steps=30, warm=10, torch_compile=True)


def transformers_lora(shape: dict[str, Any], batch: int, accumulation: int) -> Result:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.bfloat16)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"))
    return transformers_trainer(model, rows_of_random_length(16 * 8), batch, accumulation, steps=8, warm=2)


def contestants(checkout: Path) -> dict[str, dict[str, Callable[[], Result]]]:
    return {
        "gpt2": {
            "npukit": functools.partial(npukit_gpt2, GPT2),
            "transformers' Trainer, compiled": functools.partial(transformers_gpt2, GPT2),
        },
        "gpt2_as_nanogpt": {
            "npukit": functools.partial(npukit_gpt2, GPT2_AS_NANOGPT),
            "nanoGPT, compiled": functools.partial(nanogpt, checkout, True),
            "nanoGPT, compiled, a smaller model without biases": functools.partial(nanogpt, checkout, False),
            "transformers' Trainer, compiled": functools.partial(transformers_gpt2, GPT2_AS_NANOGPT),
        },
        "qwen2": {
            "npukit": functools.partial(npukit_lora, QWEN2),
            "transformers' Trainer, 1 row x 16": functools.partial(transformers_lora, QWEN2, 1, 16),
            "transformers' Trainer, 4 rows x 4": functools.partial(transformers_lora, QWEN2, 4, 4),
        },
        "qwen3_moe": {
            "npukit": functools.partial(npukit_lora, QWEN3_MOE),
            "transformers' Trainer, 4 rows x 4": functools.partial(transformers_lora, QWEN3_MOE, 4, 4),
        },
    }


def run_all(checkout: Path, only: str | None) -> Iterator[str]:
    most = ceiling()
    torch.cuda.empty_cache()
    yield f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    yield f"the ceiling, a bf16 product of 8192² matrices: {most:.0f} TFLOP/s"
    for job, runners in contestants(checkout).items():
        if only and only != job:
            continue
        yield f"\n{job}\n| | tokens/s | npukit is | peak GiB |\n|---|---|---|---|"
        ours = 0.0
        for name, got in results(runners):
            if "failed" in got:
                yield f"| {name} | failed: {got['failed']} | | |"
                continue
            speed = got["tokens_per_second"]
            ours = ours or speed
            yield f"| {name} | {speed:,.0f} | {ours / speed:.2f} times | {got['peak_gib']:.1f} |"
            if job == "qwen2" and name == "npukit":
                share = speed * QWEN2_FLOPS / most / 1e12
                yield f"| (of the ceiling: {share:.0%}) | | | |"


def main(*, nanogpt: Path, only: Annotated[str | None, JOBS] = None) -> None:
    for line in run_all(nanogpt, only):
        print(line, flush=True)
