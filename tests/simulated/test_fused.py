"""torch_npu's fused operators in language models compute what the modules compute that they replace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CODE = """
import copy, json, sys
import torch
from transformers import (AutoModelForCausalLM, GlmConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config,
                          Qwen3Config)
from npukit.llm.data.collate import Collator
from npukit.llm.data.rows import packed_row
from npukit.llm.models import attention
from npukit.llm.models.forward import return_loss
from npukit.llm.models.fused import use_fused_operators
from npukit.llm.tasks.losses.tokens import loss_of

like = dict(vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
shapes = {
    "qwen2": Qwen2Config(**like), "qwen3": Qwen3Config(**like, head_dim=16), "llama": LlamaConfig(**like),
    "mistral": MistralConfig(**like, sliding_window=None), "glm": GlmConfig(**like, head_dim=16),
    "gpt2": GPT2Config(vocab_size=101, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
}
attention.register()
row = packed_row([torch.randint(1, 101, (length,)).numpy() for length in (9, 5, 2)], 20, pad_id=0)
batch = Collator(True, 0, 20)([row])
found = {}
for name, shape in shapes.items():
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(shape, attn_implementation=attention.NAME).eval()
    fused = copy.deepcopy(plain)
    expected = {}
    for model, device in ((plain, "cpu"), (fused, "npu")):
        return_loss(model)
        model.to(device)
        if device == "npu":
            use_fused_operators(model)
        moved = {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(model, moved, longest=20)
        loss.backward()
        gradients = [each.grad.flatten().cpu().float() for each in model.parameters()]
        gradient = torch.cat(gradients)
        expected[device] = loss.item(), gradient
    (ours, g), (theirs, h) = expected["npu"], expected["cpu"]
    found[name] = [abs(ours - theirs), ((g - h).norm() / h.norm()).item()]
print(json.dumps(found))
"""


def test_losses_and_gradients_in_bf16(simulated: Any, tmp_path: Path) -> None:
    trace = tmp_path / "ops.json"
    result = json.loads(simulated(CODE, trace=trace).splitlines()[-1])
    for name, (loss, gradient) in result.items():
        assert loss < 5e-3 and gradient < 3e-2, (name, loss, gradient)
    used = {op["op"].split("::")[-1].split(".")[0] for op in json.loads(trace.read_text())["ops"]}
    assert {"npu_fusion_attention", "npu_gelu", "npu_rms_norm", "npu_swiglu", "npu_rotary_mul"} <= {
        name.removeprefix("_") for name in used
    }, sorted(used)
