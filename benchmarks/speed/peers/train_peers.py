"""The peers of `train`: nanoGPT's loop, transformers' Trainer, Liger's kernels below it, and Unsloth.

Liger and Unsloth may lie in a folder of packages, which only the process of such a contestant has on its path. Each
function runs one of them and returns its tokens a second.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.contest import result, timed

Result = dict[str, float]
Rows = Sequence[np.ndarray[Any, Any]]
# What transformers' Trainer and TRL's, which is one, are given alike.
TRAINER: dict[str, Any] = {
    "bf16": True,
    "logging_steps": 10**6,
    "save_strategy": "no",
    "report_to": [],
    "optim": "adamw_torch_fused",
}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


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


def transformers_full(shape: dict[str, Any], rows: Rows, batch: int, accumulation: int, compiled: bool) -> Result:
    """All weights are trained: fp32 weights, bf16 products."""
    return _train_padded(_new_model(shape, torch.float32), rows, batch, accumulation, torch_compile=compiled)


def transformers_lora(shape: dict[str, Any], rows: Rows, batch: int, accumulation: int) -> Result:
    return _train_padded(_with_lora(_new_model(shape, torch.bfloat16)), rows, batch, accumulation)


def liger_lora(site: str, shape: dict[str, Any], rows: Rows, batch: int, accumulation: int) -> Result:
    """transformers' Trainer with Liger's kernels for this architecture."""
    _take_packages_from(site)
    liger: Any = importlib.import_module("liger_kernel.transformers")
    liger._apply_liger_kernel(shape["model_type"])
    return _train_padded(_with_lora(_new_model(shape, torch.bfloat16)), rows, batch, accumulation)


def unsloth_lora(
    site: str,
    folder: Path,
    shape: dict[str, Any],
    rows: Rows,
    batch: int,
    longest: int,
    four_bit: bool = False,
    checkpointing: bool = False,
) -> Result:
    """TRL's SFTTrainer as Unsloth patches it, rows packed; the checkpoint that it loads is made in the folder."""
    _take_packages_from(site)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", UNSLOTH_DISABLE_STATISTICS="1")
    unsloth: Any = importlib.import_module("unsloth")  # before transformers, which it patches
    _save_checkpoint(shape, folder)
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        str(folder), max_seq_length=longest, dtype=torch.bfloat16, load_in_4bit=four_bit
    )
    model = unsloth.FastLanguageModel.get_peft_model(
        model,
        r=8,
        lora_alpha=16,
        lora_dropout=0,
        bias="none",
        target_modules=list(LINEAR),
        use_gradient_checkpointing="unsloth" if checkpointing else False,
    )
    torch.cuda.reset_peak_memory_stats()
    datasets: Any = importlib.import_module("datasets")
    trl: Any = importlib.import_module("trl")
    with tempfile.TemporaryDirectory() as output:
        arguments = trl.SFTConfig(
            output_dir=output,
            max_steps=16,
            per_device_train_batch_size=batch,
            packing=True,
            max_length=longest,
            eos_token=None,
            **TRAINER,
        )
        data = datasets.Dataset.from_dict({"input_ids": [row.tolist() for row in rows]})
        times, clock = _clock()
        trainer = trl.SFTTrainer(
            model=model, args=arguments, train_dataset=data, processing_class=tokenizer, callbacks=[clock]
        )
        packs = [len(ids) for ids in trainer.train_dataset["input_ids"]]
        trainer.train()
    return result(sum(packs) / len(packs) * batch / _seconds(times))


def _take_packages_from(site: str) -> None:
    if site != "pip":
        sys.path.insert(0, site)


def _new_model(shape: dict[str, Any], dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=dtype)


def _with_lora(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"))


def _save_checkpoint(shape: dict[str, Any], folder: Path) -> None:
    """New weights and a tokenizer of numbered words, unless the folder has them."""
    if (folder / "config.json").exists():
        return
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    _new_model(shape, torch.bfloat16).save_pretrained(folder)
    torch.cuda.empty_cache()
    words = {f"word{number}": number for number in range(1000)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="word0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="word0", eos_token="word1").save_pretrained(folder)


def _clock() -> tuple[list[float], Any]:
    """When steps ended, and the callback that notes it."""
    from transformers import TrainerCallback

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            times.append(time.perf_counter())

    return times, Clock()


def _seconds(times: list[float]) -> float:
    """The median of the later steps."""
    return float(np.median(np.diff(times)[len(times) // 2 :]))


def _train_padded(model: Any, rows: Rows, batch: int, accumulation: int, **more: Any) -> Result:
    """All rows once, in their order."""
    from transformers import Trainer, TrainingArguments

    times, clock = _clock()
    steps = len(rows) // (batch * accumulation)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            dataloader_num_workers=2,
            train_sampling_strategy="sequential",
            **TRAINER,
            **more,
        )
        data: Any = [{"input_ids": row} for row in rows]
        Trainer(model=model, args=arguments, train_dataset=data, data_collator=_padded, callbacks=[clock]).train()
    return result(sum(map(len, rows)) / steps / _seconds(times))


def _padded(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(example["input_ids"]) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for number, example in enumerate(examples):
        row = torch.as_tensor(example["input_ids"], dtype=torch.long)
        ids[number, : len(row)], labels[number, : len(row)], mask[number, : len(row)] = row, row, 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}
