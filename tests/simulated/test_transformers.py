"""transformers' Trainer, PEFT and generate on the simulated NPU give what they give on the CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

SCRIPT = """
import json, sys, tempfile, warnings
warnings.filterwarnings("ignore")
import torch
from peft import LoraConfig, get_peft_model
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Trainer, TrainingArguments)

SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                                               attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)),
}
rows = [torch.randint(3, 96, (16,), generator=torch.Generator().manual_seed(i)) for i in range(40)]
data = [{"input_ids": row, "labels": row} for row in rows]

def make(name, lora):
    torch.manual_seed(0)
    model = MODELS[name]()
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")) if lora else model

def losses(name, lora, steps, **options):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, max_steps=steps, per_device_train_batch_size=4,
                                      learning_rate=3e-3, logging_steps=1, report_to=[], save_strategy="no",
                                      disable_tqdm=True, seed=1, dataloader_pin_memory=False, **options)
        trainer = Trainer(model=make(name, lora), args=arguments, train_dataset=data)
        trainer.train()
    assert trainer.model.device.type == ("cpu" if options.get("use_cpu") else "npu")
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], trainer.model

name = sys.argv[1]
found = {}
for lora in (False, True):
    cpu, cpu_model = losses(name, lora, 30, use_cpu=True)
    npu, npu_model = losses(name, lora, 30)
    found[f"lora {lora}"] = max(abs(a - b) for a, b in zip(cpu, npu, strict=True))
    found[f"learned {lora}"] = cpu[0] - cpu[-1]
found["bf16"] = losses(name, False, 10, bf16=True)[0]
prompt = torch.tensor([[5, 6, 7, 8]])
model = make(name, False).eval()
model.load_state_dict({k: v.cpu() for k, v in losses(name, False, 30)[1].state_dict().items()})
options = dict(max_new_tokens=20, do_sample=False, pad_token_id=0)
here = model.generate(prompt, **options).tolist()
there = model.to("npu").generate(prompt.to("npu"), **options).tolist()
found["same tokens"] = here == there
print(json.dumps(found))
"""


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_training_and_generation_equal_the_cpus(simulated: Any, name: str) -> None:
    found = json.loads(simulated(SCRIPT, name, timeout=400).splitlines()[-1])
    assert found["lora False"] < 1e-4
    assert found["lora True"] < 1e-4
    assert found["learned False"] > 0.05 and found["learned True"] > 0.01
    assert found["bf16"][-1] < found["bf16"][0]
    assert found["same tokens"]
