"""Models with quantised weights as other tools save them, packed here by the definitions of their formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 32
Packed = tuple[dict[str, Tensor], Tensor]  # the parts of a layer, and the weight that they stand for


def words(numbers: Tensor, bits: int, dim: int) -> Tensor:
    """Integers along a dimension in 32-bit words, the first in the lowest bits."""
    parts = numbers.long().unflatten(dim, (-1, 32 // bits)).movedim(dim + 1, 0)
    word = sum(part << bits * index for index, part in enumerate(parts))
    assert isinstance(word, Tensor)
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32)


def integers(weight: Tensor, bits: int, groups: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A weight as integers, with scales and zero points by group, and the weight that these stand for."""
    count = int(groups.max()) + 1
    by_group = [weight[:, groups == group] for group in range(count)]
    low, high = (torch.stack([getattr(part, which)(1) for part in by_group], 1) for which in ("amin", "amax"))
    scale = ((high - low) / (2**bits - 1)).half().float()
    zero = (-low / scale).round().clamp(1, 2**bits - 1)
    numbers = (weight / scale[:, groups] + zero[:, groups]).round().clamp(0, 2**bits - 1)
    return numbers, scale, zero, (numbers - zero[:, groups]) * scale[:, groups]


def gptq(weight: Tensor, bits: int, desc_act: bool = False, less: int = 1) -> Packed:
    groups = torch.arange(weight.shape[1]) // GROUP
    if desc_act:
        groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))]
    numbers, scale, zero, exact = integers(weight, bits, groups)
    parts = {"qweight": words(numbers.T, bits, 0), "qzeros": words(zero.T - less, bits, 1)}
    return parts | {"scales": scale.T.half().contiguous(), "g_idx": groups.int()}, exact


def awq(weight: Tensor) -> Packed:
    numbers, scale, zero, exact = integers(weight, 4, torch.arange(weight.shape[1]) // GROUP)
    order = torch.arange(weight.shape[0]).view(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].flatten()
    parts = {"qweight": words(numbers.T[:, order], 4, 1), "qzeros": words(zero.T[:, order], 4, 1)}
    return parts | {"scales": scale.T.half().contiguous()}, exact


def packed(weight: Tensor) -> Packed:
    numbers, scale, zero, exact = integers(weight, 4, torch.arange(weight.shape[1]) // GROUP)
    parts = {
        "weight_packed": words(numbers, 4, 1),
        "weight_zero_point": words(zero, 4, 0),
        "weight_scale": scale.half(),
    }
    return parts | {"weight_shape": torch.tensor(weight.shape)}, exact


def blocks_of_fp8(weight: Tensor) -> Packed:
    """Scales for blocks of 48 x 48, which do not divide the weight."""
    high, wide = (-(-size // 48) for size in weight.shape)
    scale = torch.rand(high, wide, generator=torch.Generator().manual_seed(0)) * 0.01 + 0.001
    spread = scale.repeat_interleave(48, 0)[: weight.shape[0]].repeat_interleave(48, 1)[:, : weight.shape[1]]
    small = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": small, "weight_scale_inv": scale}, small.float() * spread


def rows_of_int8(weight: Tensor, name: str = "weight_scale", **others: Tensor) -> Packed:
    scale = weight.abs().amax(1, keepdim=True) / 127
    numbers = (weight / scale).round().to(torch.int8)
    return {"weight": numbers, name: scale, **others}, numbers * scale


def of_bitsandbytes(weight: Tensor) -> Packed:
    values = torch.linspace(-1, 1, 16)
    flat = weight.flatten().view(-1, 64)
    scale = flat.abs().amax(1)
    numbers = torch.bucketize(flat / scale[:, None], (values[1:] + values[:-1]) / 2).flatten().to(torch.uint8)
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)})
    parts = {"weight": (numbers[::2] << 4 | numbers[1::2])[:, None], "weight.absmax": scale, "weight.quant_map": values}
    described = torch.tensor(list(state.encode()), dtype=torch.uint8)
    exact = (values[numbers.long()].view(-1, 64) * scale[:, None]).view(weight.shape)
    return parts | {"weight.quant_state.bitsandbytes__nf4": described}, exact


def eight_bit_rows(weight: Tensor) -> Packed:
    parts, exact = rows_of_int8(weight)
    return {"weight": parts["weight"], "SCB": parts["weight_scale"][:, 0] * 127}, exact


def of_msmodelslim(weight: Tensor) -> Packed:
    return rows_of_int8(weight, weight_offset=torch.zeros(len(weight), 1))


COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors", "config_groups": {"all": {"weights": {}}}}
KINDS: dict[str, tuple[dict[str, Any] | None, Any]] = {
    "gptq": ({"quant_method": "gptq"}, lambda weight: gptq(weight, 4)),
    "gptq-8": ({"quant_method": "gptq"}, lambda weight: gptq(weight, 8)),
    "gptq-act-order": ({"quant_method": "gptq"}, lambda weight: gptq(weight, 4, desc_act=True)),
    "gptq-v2": ({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, lambda weight: gptq(weight, 4, less=0)),
    "awq": ({"quant_method": "awq", "version": "gemm"}, awq),
    "packed": ({**COMPRESSED, "format": "pack-quantized"}, packed),
    "int8": ({**COMPRESSED, "format": "int-quantized"}, rows_of_int8),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [48, 48]}, blocks_of_fp8),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, of_bitsandbytes),
    "llm.int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, eight_bit_rows),
    "msmodelslim": (None, of_msmodelslim),
}


def quantized_copy(model: Path, folder: Path, kind: str) -> dict[str, Tensor]:
    """Write a model with its linear layers quantised; the weights that it then stands for."""
    settings, pack = KINDS[kind]
    shutil.copytree(model, folder)
    exact = load_file(model / "model.safetensors")
    saved = {name: tensor for name, tensor in exact.items() if not name.endswith("_proj.weight")}
    described = dict.fromkeys(saved, "FLOAT")
    for name in exact.keys() - saved.keys():
        parts, exact[name] = pack(exact[name].float())
        named = {name.removesuffix("weight") + part: value.contiguous() for part, value in parts.items()}
        saved, described = saved | named, described | dict.fromkeys(named, "W8A8_DYNAMIC")
    save_file(saved, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if settings:
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    else:
        (folder / "quant_model_description.json").write_text(json.dumps(described))
    return exact
