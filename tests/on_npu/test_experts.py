"""Experts as torch_npu's grouped products compute what transformers' loop over the experts does, gradients included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from npukit.llm.models.experts import GROUPED_ON_NPU, are_grouped, use_grouped_experts

SMALL = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 0,  # DeepSeek's and GLM's first layers have no experts
}


class AsksTheDevice(TorchDispatchMode):
    """Notes the operators for whose result the host waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._opname in {"_local_scalar_dense", "nonzero", "unique", "bincount"}:
            self.asked.append(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "deepseek_v3", "glm4_moe", "gpt_oss"])
def test_grouped_experts_agree_with_a_loop(kind: str) -> None:
    torch.manual_seed(0)
    expected = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL)).eval()
    expected.set_experts_implementation("eager")
    model = copy.deepcopy(expected).to("npu")
    use_grouped_experts(model)
    assert are_grouped(model, torch.float16) == (kind != "gpt_oss")  # whose experts have a bias
    assert (model.config._experts_implementation == GROUPED_ON_NPU) == (kind != "gpt_oss")
    ids = torch.randint(1, 101, (2, 5))  # ten tokens: some expert gets none
    loss = expected(input_ids=ids, labels=ids).loss
    loss.backward()
    ids = ids.npu()
    with AsksTheDevice() as watch:
        actual = model(input_ids=ids, labels=ids).loss
        actual.backward()
    assert watch.asked == [] or kind == "gpt_oss"
    assert abs(actual.item() - loss.item()) < 1e-5
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, atol=1e-5, rtol=1e-4, msg=name)
