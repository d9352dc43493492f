"""A small language model with the same weights everywhere, in training, in the engine, and operator by operator."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from npukit.launch.abilities import has_bf16
from npukit.launch.devices import torch_device
from npukit.precision import capture
from npukit.report.unfinished import temporary_folder
from npukit.selftest.check import DeviceCheck

if TYPE_CHECKING:
    from npukit.inference.engine import EngineOptions

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": None,
}
EXPERTS = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
STEPS, ROWS, LENGTH, TOKENS = 8, 4, 32, 8
# Lengths and strides after which the most likely token leads the second one by 0.07 standard deviations of the
# logits or more, which rounding in float16 does not change.
PROMPTS = ((5, 13), (40, 14), (171, 20))


def model_of(kind: str = "qwen2", spread: float = 0.05, **shape: Any) -> Any:
    """A transformers model whose weights depend only on their names, not on the version of a library."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE, **shape), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            drawn = torch.randn(weight.shape, generator=draw) * spread
            weight.copy_(drawn + 1 if "norm" in name else drawn)
    return model


def rows(count: int) -> Tensor:
    """Token ids that a model can learn: each row counts up with a stride of its own."""
    return (torch.arange(LENGTH) * torch.arange(1, count + 1)[:, None] + 7) % SHAPE["vocab_size"]  # type: ignore[operator]


def training() -> Iterator[DeviceCheck]:
    """The losses of the training engine, in each precision that the device supports."""
    dtypes = [torch.float32, *([torch.bfloat16] if has_bf16(torch_device()) else [])]
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        yield DeviceCheck(f"language model {name}", partial(_losses, dtype, ranks=1), "losses", dtype)


def parallel_training(ranks: int) -> DeviceCheck:
    """The same steps on several ranks, each with its share of the rows."""
    return DeviceCheck(
        "training on all ranks",
        partial(_losses, torch.float32, ranks=ranks),
        "losses" if ROWS % ranks == 0 else "",
        torch.float32,
    )


def _losses(dtype: torch.dtype, device: torch.device, ranks: int) -> Sequence[Tensor]:
    from npukit.train import Trainer, TrainOptions

    model = model_of()
    with temporary_folder("selftest") as folder:
        options = TrainOptions(
            output=folder / "run",
            precision="bf16" if dtype == torch.bfloat16 else "fp32",
            batch_size=max(1, ROWS // ranks),
            max_steps=STEPS,
            learning_rate=1e-2,
            log_every=1,
            save_every=None,
            shuffle=False,
            plot=False,
        )
        data = [{"input_ids": row, "labels": row} for row in rows(ROWS)]
        Trainer(model, options, data, loss=_loss).train()
        log = folder / "run" / "log.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    losses = [[line["loss"] for line in lines if "loss" in line]]
    if ranks > 1:
        dist.broadcast_object_list(losses, 0)  # the first rank has the log
    return [torch.tensor(losses[0], dtype=torch.float32)]


def _loss(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def serving() -> Iterator[DeviceCheck]:
    """The engine's tokens, on each of its code paths."""
    from npukit.inference.engine import EngineOptions

    limits: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 300}
    plain = EngineOptions(**limits)
    ways = {
        "float32": (torch.float32, plain),
        "fused operators": (torch.float16, EngineOptions(**limits, enforce_eager=True)),
        "graphs": (torch.float16, plain),
        "graphs, prompt lookup": (torch.float16, EngineOptions(**limits, prompt_lookup=4)),
        "graphs, chunks": (torch.float16, EngineOptions(**limits, max_num_batched_tokens=100)),
    }
    for name, (dtype, options) in ways.items():
        yield DeviceCheck(name, partial(_tokens, "qwen2", dtype, options), "tokens")
    for dtype in (torch.float32, torch.float16):
        name = f"experts {str(dtype).removeprefix('torch.')}"
        yield DeviceCheck(name, partial(_tokens, "qwen3_moe", dtype, plain), "tokens of experts")


def _tokens(kind: str, dtype: torch.dtype, options: EngineOptions, device: torch.device) -> Sequence[Tensor]:
    from npukit.inference.engine import Engine, Request, SamplingParams

    shape = EXPERTS if kind == "qwen3_moe" else {}
    model = model_of(kind, spread=0.3, **shape).to(dtype).to(device)
    asked = [tuple((torch.arange(length) * stride % 299 + 1).tolist()) for length, stride in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    answers = Engine(model, options).generate([Request(prompt, params) for prompt in asked])
    return [torch.tensor([answer.ids for answer in answers])]


def precision() -> Iterator[DeviceCheck]:
    """A training step, captured on the CPU and on the device."""
    yield DeviceCheck("a training step", _compared)
    yield DeviceCheck("each of its operators alone", _operators_alone)


def _captured(folder: Path, device: torch.device, tensors: bool = False) -> Path:
    model, batch = model_of().to(device), rows(ROWS).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(folder, level="ops", tensors=tensors):
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return folder


def _compared(device: torch.device) -> Sequence[Tensor]:
    from npukit.precision.comparing import compare

    with temporary_folder("selftest") as folder:
        comparison = compare(_captured(folder / "cpu", torch.device("cpu")), _captured(folder / "device", device))
    if comparison.first is not None:
        raise AssertionError(f"first difference: {comparison.first.row.title}")
    return []


def _operators_alone(device: torch.device) -> Sequence[Tensor]:
    from npukit.precision.kernels import check_here

    with temporary_folder("selftest") as folder:
        checked = list(check_here(_captured(folder, torch.device("cpu"), tensors=True), device))
    off = [
        f"{case.op} {case.dtype} {case.shapes} by {case.error:.1e}" for case in checked if case.outcome == "out of line"
    ]
    if off:
        raise AssertionError(f"out of line: {'; '.join(off)}")
    return []
