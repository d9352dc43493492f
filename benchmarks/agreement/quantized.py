"""Compare QLoRA's nf4 weights and losses with those of bitsandbytes, and run its 8-bit AdamW, on a CPU.

    python -m benchmarks quantized [--steps 100]

Needs bitsandbytes (pip install bitsandbytes), whose nf4 is the one of QLoRA's paper. Both train the same LoRA adapter
over the same random two-layer Qwen2 on the same rows. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from npukit.llm.models.quantized import pack, quantize, unpack
from npukit.train.options import TrainOptions
from npukit.train.other_optimizers import make_other

SHAPES = ((96, 256), (512, 512), (1000, 64), (2048, 1024))


def compare_weights() -> None:
    for scale in (0.02, 1.0):
        for shape in SHAPES:
            weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale
            ours, scales = pack(weight, "nf4")
            theirs, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
            same = (ours == theirs.flatten()).float().mean().item()
            apart = (unpack(ours, scales, shape, "nf4") - dequantize_4bit(theirs, state)).abs().max().item()
            print(
                f"{shape[0]} x {shape[1]}, scale {scale}: {same:.4%} of the bytes are equal, weights within {apart:.1e}"
            )


def model() -> Any:
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return Qwen2ForCausalLM(shape)


def by_bitsandbytes(model: Any) -> None:
    """Every linear layer but the output layer."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear and layer is not model.lm_head:
                small = bitsandbytes.nn.Linear4bit(
                    layer.in_features, layer.out_features, layer.bias is not None, torch.float32, False, "nf4"
                )
                small.load_state_dict(layer.state_dict())
                setattr(parent, name, small.to("cpu"))


def losses(make_small: Callable[[Any], None] | None, steps: int, optimizer: str = "adamw") -> list[float]:
    base = model()
    if make_small:
        make_small(base)
    torch.manual_seed(1)
    tuned: Any = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [weight for weight in tuned.parameters() if weight.requires_grad]
    steer: torch.optim.Optimizer = torch.optim.AdamW(trained, lr=1e-3)
    if optimizer != "adamw":
        options = {"optimizer_options": {"min_8bit_size": 0}}  # or small tensors stay in 32 bits
        steer = make_other(tuned, TrainOptions(optimizer=optimizer, learning_rate=1e-3, weight_decay=0.01, **options))
    rows = torch.randint(512, (8, 4, 32), generator=torch.Generator().manual_seed(2))
    values = []
    for step in range(steps):
        batch = rows[step % len(rows)]
        loss = tuned(input_ids=batch, labels=batch).loss
        loss.backward()
        steer.step()
        steer.zero_grad()
        values.append(loss.item())
    return values


def main(steps: int = 100) -> None:
    print(f"bitsandbytes {bitsandbytes.__version__}")
    compare_weights()
    ours = losses(lambda base: quantize(base, "nf4", torch.device("cpu")), steps)
    theirs = losses(by_bitsandbytes, steps)
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"nf4 LoRA: loss {ours[0]:.4f} → {ours[-1]:.4f} here, {theirs[-1]:.4f} there, at most {worst:.1e} apart")
    whole, eight = losses(None, steps), losses(None, steps, "adamw_8bit")
    print(f"AdamW: loss {whole[0]:.4f} → {whole[-1]:.4f} after {steps} steps, with 8-bit states {eight[-1]:.4f}")
