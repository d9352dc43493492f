"""Gated layers with LoRA: the fused ones compute what PEFT computes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from npukit.llm.models import lora

TARGETS = ["gate_proj", "up_proj", "down_proj"]


class GatedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(24, 40), nn.Linear(24, 40, bias=False)
        self.down_proj, self.act_fn = nn.Linear(40, 24, bias=False), nn.SiLU()

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))
        return made


def adapted(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    torch.manual_seed(0)
    config = LoraConfig(**{"r": 3, "lora_alpha": 9, "target_modules": TARGETS, **options})
    model = get_peft_model(nn.Sequential(GatedMLP(), GatedMLP()).to(dtype), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return model


def fused_layers(model: nn.Module) -> int:
    return sum("forward" in vars(module) for module in model.modules() if isinstance(module, GatedMLP))


def result_and_gradients(model: nn.Module, hidden: Tensor) -> list[Tensor]:
    inputs = hidden.clone().requires_grad_()
    result = model(inputs)
    result.sin().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    return [part for part in (result.detach(), inputs.grad, *gradients) if part is not None]


@pytest.mark.parametrize("rank_pattern", [{}, {"up_proj": 17}], ids=["one rank", "two ranks"])
def test_fused_layers_have_the_result_and_gradients_of_peft(
    rank_pattern: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "DTYPES", (torch.float32,))
    model = adapted(torch.float32, rank_pattern=rank_pattern)
    fused = copy.deepcopy(model)
    lora.fuse_adapted_layers(fused)
    assert fused_layers(fused) == 2
    hidden = torch.randn(2, 7, 24)
    expected, ours = (result_and_gradients(made, hidden) for made in (model, fused))
    assert len(expected) == 2 + 12
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-3)


def test_a_disabled_adapter_changes_nothing() -> None:
    model = adapted()
    lora.fuse_adapted_layers(model)
    hidden = torch.randn(1, 4, 24, dtype=torch.bfloat16)
    with model.disable_adapter():
        off = model(hidden)
    on = model(hidden)
    assert not torch.equal(on, off)
    assert torch.equal(off, nn.Sequential(*(without_adapter(layer) for layer in model.get_base_model()))(hidden))


def without_adapter(layer: Any) -> GatedMLP:
    made = GatedMLP().to(torch.bfloat16)
    made.load_state_dict(
        {name.replace("base_layer.", ""): part for name, part in layer.state_dict().items() if "lora_" not in name}
    )
    return made


@pytest.mark.parametrize(
    "options", [{"lora_dropout": 0.5}, {"use_dora": True}, {"target_modules": TARGETS[:2]}, {"r": 33}], ids=str
)
def test_other_layers_stay_as_they_are(options: dict[str, Any]) -> None:
    model = adapted(**options)
    lora.fuse_adapted_layers(model)
    assert fused_layers(model) == 0
