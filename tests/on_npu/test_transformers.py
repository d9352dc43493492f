"""transformers' Trainer, PEFT and generate on the simulated NPU give what they give on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainingArguments,
)

SMALL: dict[str, Any] = {
    **{"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2},
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=96, **GPT2)),
}
ROWS = [torch.randint(3, 96, (16,), generator=torch.Generator().manual_seed(i)) for i in range(40)]


def make(name: str, lora: bool) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]()
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")) if lora else model


def trained(folder: Path, name: str, lora: bool = False, **options: Any) -> tuple[list[float], Any]:
    """The losses of some steps, and the model."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=10,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=1,
        dataloader_pin_memory=False,
        **options,
    )
    data: Any = [{"input_ids": row, "labels": row} for row in ROWS]
    trainer = Trainer(model=make(name, lora), args=arguments, train_dataset=data)
    trainer.train()
    assert trainer.model.device.type == ("cpu" if options.get("use_cpu") else "npu")
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], trainer.model


@pytest.mark.parametrize(("name", "lora"), [("llama", True), ("qwen2", False), ("gpt2", False)])
def test_training_and_generation_equal_the_cpus(tmp_path: Path, name: str, lora: bool) -> None:
    there, model = trained(tmp_path, name, lora)
    assert there == pytest.approx(trained(tmp_path, name, lora, use_cpu=True)[0], abs=1e-4)
    assert min(there[1:]) < there[0]
    prompt, options = torch.tensor([[5, 6, 7, 8]]), {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    answer = model.eval().generate(input_ids=prompt.npu(), **options).tolist()
    assert model.cpu().generate(input_ids=prompt, **options).tolist() == answer


def test_training_in_bf16_learns(tmp_path: Path) -> None:
    losses, _ = trained(tmp_path, "qwen2", bf16=True)
    assert losses[-1] < losses[0]
