"""Plant faults one at a time in six small models: is the first operator that differs the one that was changed?

    python benchmarks/precision_faults.py [--only NAME] [--msprobe PYTHON] [--keep FOLDER]

Most faults are wrong kernels: below the recorder, the result of one call of one operator is changed, as a device would.
The others are mistakes in code: another epsilon, a dropped mask, weights that were transposed. Clean pairs differ as
two right runs do: other threads, other kernels, other memory formats, activation checkpointing, DDP.
With --msprobe (the Python of an environment with mindstudio-probe) its verdict on the same dumps stands beside ours.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from npukit.precision import capture
from npukit.precision.comparing import compare
from npukit.precision.recording.operators import operator_of
from npukit.precision.result import Comparison

Patch = Callable[["Run"], Any]
Make = Callable[[str], "Run"]


@dataclass
class Run:
    """What a fault may change before a run begins."""

    model: nn.Module
    batch: dict[str, Tensor]
    optimizer: torch.optim.Optimizer
    clip: float | None = 1.0
    scale: float = 1.0  # of the loss
    around: Any = None  # a context for forward and backward


class WrongKernel(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes the first result of one call of an operator. It lies below the recorder, which sees what it returns."""

    def __init__(self, op: str, number: int, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op, self.left, self._change = op, number, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = operator_of(func)
        if operator.computes and operator.name.partition(".")[2] == self.op:
            self.left -= 1
            if self.left == -1:
                first = (
                    result if isinstance(result, Tensor) else next(each for each in result if isinstance(each, Tensor))
                )
                first.copy_(self._change(first.clone()))
        return result


# What a wrong kernel does.


def one_percent(x: Tensor) -> Tensor:
    return x * 1.01


def to_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def one_nan(x: Tensor) -> Tensor:
    x.view(-1)[x.numel() // 2] = float("nan")
    return x


def flipped_bit(x: Tensor) -> Tensor:
    bits = x.view(-1).view(torch.int32)
    bits[bits.numel() // 3] ^= 1 << 26
    return x


def last_row_lost(x: Tensor) -> Tensor:
    x[-1] = 0
    return x


def rolled(x: Tensor) -> Tensor:
    return x.roll(1, -1)


def permuted(x: Tensor) -> Tensor:
    return x.flatten().view(*reversed(x.shape)).permute(*reversed(range(x.dim()))).contiguous().view(x.shape)


def stale(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


# Models


def transformer(kind: str) -> nn.Module:
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "eager"}
    if kind == "gpt2":
        sizes = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
        sizes |= {"attn_implementation": "eager", "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    name = {"llama": "Llama", "qwen2": "Qwen2", "gpt2": "GPT2"}[kind]
    head = "GPT2LMHeadModel" if kind == "gpt2" else f"{name}ForCausalLM"
    return getattr(transformers, head)(getattr(transformers, f"{name}Config")(**sizes))  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers = nn.Conv2d(3, 8, 3), nn.Sequential(Residual(8), nn.MaxPool2d(2), Residual(8))
        self.head = nn.Linear(8, 10)

    def forward(self, pixels: Tensor, labels: Tensor) -> Any:
        return nn.functional.cross_entropy(self.head(self.layers(self.stem(pixels)).mean((2, 3))), labels)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm, self.middle = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(11, 3, 1)

    def forward(self, pixels: Tensor, labels: Tensor) -> Any:
        low = nn.functional.silu(self.norm(self.down(pixels)))
        up = self.up(torch.cat([low, self.middle(low)], 1))
        return (self.out(torch.cat([up, pixels], 1)) - pixels.flip(3)).square().mean()


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(96, 16), nn.LSTMCell(16, 24), nn.Linear(24, 96)

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Any:
        state, outputs = (torch.zeros(len(input_ids), 24), torch.zeros(len(input_ids), 24)), []
        for column in self.embed(input_ids).unbind(1):
            state = self.cell(column, state)
            outputs.append(self.head(state[0]))
        return nn.functional.cross_entropy(torch.stack(outputs[:-1], 1).flatten(0, 1), labels[:, 1:].flatten())


def make(kind: str) -> Run:
    torch.manual_seed(0)
    own = {"resnet": ResNet, "unet": UNet, "lstm": Lstm}
    model = own[kind]() if kind in own else transformer(kind)
    if kind in ("resnet", "unet"):
        batch = {"pixels": torch.randn(4, 3, 14, 14), "labels": torch.randint(0, 10, (4,))}
    else:
        tokens = torch.randint(0, 96, (2, 12))
        mask = torch.ones_like(tokens)
        if kind != "gpt2":
            mask[0, :4] = 0
        batch = {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": mask}
    torch.manual_seed(1)
    model.train()
    return Run(model, batch, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False))


def record(
    make: Make, kind: str, folder: Path, patch: Patch | None = None, below: Any = None, level: str = "ops"
) -> Path:
    run = make(kind)
    context = (patch(run) if patch else None) or ExitStack()
    with ExitStack() as around:
        around.enter_context(context)
        if below:
            around.enter_context(below)
        around.enter_context(capture(folder, level=level, steps=[0], fresh=kind == "unet"))  # type: ignore[arg-type]
        found = run.model(**run.batch)
        loss = (found if isinstance(found, Tensor) else found.loss) * run.scale
        loss.backward()
        if run.clip:
            nn.utils.clip_grad_norm_(run.model.parameters(), run.clip)
        run.optimizer.step()
    if below and below.left >= 0:
        raise SystemExit(f"{kind} does not call {below.op} that often: the fault was not planted.")
    return folder


# Mistakes in code


def setting(path: str, name: str, value: Any) -> Patch:
    return lambda run: setattr(run.model.get_submodule(path), name, value)


def transposed(path: str) -> Patch:
    def patch(run: Run) -> None:
        weight: Any = run.model.get_submodule(path).weight
        weight.data = weight.data.flatten().view(*reversed(weight.shape)).t().contiguous()

    return patch


def group(**values: Any) -> Patch:
    return lambda run: run.optimizer.param_groups[0].update(values)


def batch(name: str, change: Callable[[Tensor], Tensor]) -> Patch:
    return lambda run: run.batch.update({name: change(run.batch[name])})


def run_value(**values: Any) -> Patch:
    return lambda run: run.__dict__.update(values)


def rotary_off_by_one(run: Run) -> None:
    run.batch["position_ids"] = torch.arange(1, 13).expand(2, 12)


def norm_in_bf16(path: str) -> Patch:
    def patch(run: Run) -> None:
        module = run.model.get_submodule(path)
        forward = module.forward
        module.forward = lambda x: forward(x.bfloat16()).float()

    return patch


def behind_torch(path: str) -> Patch:
    """A write that no operator makes, as by a copy on another stream that nobody waits for."""

    def patch(run: Run) -> None:
        def hook(module: nn.Module, inputs: Any) -> None:
            inputs[0].detach().numpy()[..., 0] = 0.0

        run.model.get_submodule(path).register_forward_pre_hook(hook)

    return patch


@dataclass(frozen=True)
class Fault:
    model: str
    name: str
    op: str = ""
    number: int = 0
    change: Callable[[Tensor], Tensor] | None = None
    patch: Patch | None = None
    expected: str = ""  # of mistakes in code: kind, and a pattern over the sentence that names the first difference


# ruff: noqa: E501
FAULTS = [
    Fault("llama", "matmul off by 1%", "mm", 3, one_percent),
    Fault("llama", "softmax off by 1%", "_softmax", 1, one_percent),
    Fault("llama", "rsqrt in bf16", "rsqrt", 2, to_bf16),
    Fault("llama", "rotary sine shifted", "sin", 0, rolled),
    Fault("llama", "SiLU gives a NaN", "silu", 1, one_nan),
    Fault("llama", "residual lost", "add", 5, stale),
    Fault("llama", "batched product permuted", "bmm", 2, permuted),
    Fault("llama", "backward: product off by 1%", "mm", 20, one_percent),
    Fault("llama", "backward: softmax in bf16", "_softmax_backward_data", 0, to_bf16),
    Fault("llama", "backward: SiLU lost a row", "silu_backward", 0, last_row_lost),
    Fault("llama", "optimizer: a bit flipped", "addcdiv_", 4, flipped_bit),
    Fault("llama", "another epsilon", patch=setting("model.layers.1.input_layernorm", "variance_epsilon", 1e-3), expected=r"argument: add in model\.layers\.1\.input_layernorm"),
    Fault("llama", "rotary position off by one", patch=rotary_off_by_one, expected="rotary_emb"),
    Fault("qwen2", "bias lost", "addmm", 1, lambda x: x * 0.9),
    Fault("qwen2", "a bit flipped in a product", "mm", 5, flipped_bit),
    Fault("qwen2", "embedding row lost", "embedding", 0, last_row_lost),
    Fault("qwen2", "loss off by 1%", "nll_loss_forward", 0, one_percent),
    Fault("qwen2", "backward: embedding stale", "embedding_dense_backward", 0, stale),
    Fault("qwen2", "padding mask dropped", patch=batch("attention_mask", torch.ones_like), expected="source: .*_to_copy in model "),
    Fault("qwen2", "weight transposed", patch=transposed("model.layers.1.self_attn.q_proj"), expected=r"source: .*(q_proj|model\.layers\.1)"),
    Fault("qwen2", "weight decay differs", patch=group(weight_decay=0.1), expected=r"argument: mul_ \(optimizer\)"),
    Fault("gpt2", "attention scaled by 1%", "bmm", 1, one_percent),
    Fault("gpt2", "layer norm in bf16", "native_layer_norm", 2, to_bf16),
    Fault("gpt2", "tanh of GELU shifted", "tanh", 1, rolled),
    Fault("gpt2", "backward: layer norm off by 1%", "native_layer_norm_backward", 1, one_percent),
    Fault("gpt2", "backward: sum of bias NaN", "sum", 2, one_nan),
    Fault("gpt2", "norm computed in bf16", patch=norm_in_bf16("transformer.h.1.ln_1"), expected=r"(missing|dtype|operator|shape): .*transformer\.h\.1\.ln_1"),
    Fault("gpt2", "no gradient clipping", patch=run_value(clip=None), expected="(gradients of|_foreach_norm|_foreach_mul)"),
    Fault("gpt2", "labels of another batch", patch=batch("labels", lambda x: x.roll(1, 1)), expected="source: "),
    Fault("resnet", "convolution in bf16", "convolution", 2, to_bf16),
    Fault("resnet", "batch norm off by 1%", "native_batch_norm", 3, one_percent),
    Fault("resnet", "pooling shifted", "max_pool2d_with_indices", 0, rolled),
    Fault("resnet", "backward: convolution stale", "convolution_backward", 1, stale),
    Fault("resnet", "optimizer: moment in bf16", "lerp_", 7, to_bf16),
    Fault("resnet", "batch norm's epsilon", patch=setting("layers.2.bn1", "eps", 1e-2), expected=r"argument: .*batch_norm.* in layers\.2\.bn1"),
    Fault("unet", "group norm off by 1%", "native_group_norm", 0, one_percent),
    Fault("unet", "concatenation shifted", "cat", 1, rolled),
    Fault("unet", "a write behind torch's back", patch=behind_torch("middle"), expected="between: "),
    Fault("lstm", "sigmoid off by 1%", "sigmoid_", 7, one_percent),
    Fault("lstm", "backward: a NaN", "tanh_backward", 3, one_nan),
]  # fmt: skip


# Clean pairs: two right runs

Clean = tuple[str, str, Patch | None, str]  # model, name, what differs, level


def threads(run: Run) -> Any:
    @contextmanager
    def two() -> Iterator[None]:
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(1)

    return two()


def foreach(run: Run) -> None:
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-2, foreach=True)


def fused(run: Run) -> None:
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-2, fused=True)


def channels_last(run: Run) -> None:
    run.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run.batch["pixels"] = run.batch["pixels"].contiguous(memory_format=torch.channels_last)


def checkpointing(run: Run) -> None:
    run.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]


def sdpa(run: Run) -> None:
    run.model.set_attn_implementation("sdpa")  # type: ignore[operator]


def ddp(run: Run) -> None:
    if not torch.distributed.is_initialized():
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    run.model = nn.parallel.DistributedDataParallel(run.model)


CLEAN: list[Clean] = [
    *((kind, "again", None, "ops") for kind in ("llama", "qwen2", "gpt2", "resnet", "unet", "lstm")),
    *((kind, "two threads", threads, "ops") for kind in ("llama", "gpt2", "resnet", "lstm")),
    ("llama", "two threads, modules", threads, "modules"),
    ("resnet", "channels last", channels_last, "ops"),
    ("unet", "channels last", channels_last, "ops"),
    ("llama", "foreach optimizer", foreach, "ops"),
    ("gpt2", "fused optimizer", fused, "ops"),
    ("qwen2", "activation checkpointing", checkpointing, "ops"),
    ("gpt2", "SDPA for eager attention", sdpa, "ops"),
    ("gpt2", "SDPA for eager attention, modules", sdpa, "modules"),
    ("gpt2", "DDP", ddp, "ops"),
    ("resnet", "DDP, modules", ddp, "modules"),
]


def found_by_us(fault: Fault, found: Comparison) -> bool:
    if found.first is None:
        return False
    if fault.op:
        prefix = f"Aten.{fault.op}.{fault.number}.forward"
        return found.first.row.left == prefix
    return re.search(fault.expected, f"{found.first.kind}: {found.first.what}", re.DOTALL) is not None


MSPROBE = """
import glob, json, os, sys, tempfile
from msprobe.pytorch.compare.pt_compare import pt_compare
import pandas
for line in sys.stdin:
    left, right = json.loads(line)
    with tempfile.TemporaryDirectory() as out:
        os.chmod(out, 0o700)
        try:
            pt_compare({"npu_path": right + "/dump.json", "bench_path": left + "/dump.json", "is_print_compare_log": False}, out)
            table = pandas.read_csv(glob.glob(out + "/*.csv")[0])
            bad = table[table.Result != "pass"]
            first = bad.iloc[0]["NPU Name"] if len(bad) else ""
            print("MSPROBE", json.dumps([len(table), int((table.Result == "error").sum()), int((table.Result == "warning").sum()), first]), flush=True)
        except BaseException as error:
            print("MSPROBE", json.dumps([0, 0, 0, "failed: " + repr(error)[:80]]), flush=True)
"""


def msprobe_verdicts(python: str, pairs: list[tuple[str, str]]) -> Iterator[list[Any]]:
    """Rows, errors, warnings and the first row that does not pass, of each pair as soon as it is known."""
    text = "".join(json.dumps([f"{a}/step0/rank0", f"{b}/step0/rank0"]) + "\n" for a, b in pairs)
    with tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        command = [python, "-c", MSPROBE]
        with subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as it:
            for line in it.stdout or ():
                if line.startswith("MSPROBE "):
                    yield json.loads(line.partition("MSPROBE ")[2])


def evaluate(faults: Sequence[Fault], clean: Sequence[Clean], make: Make) -> None:
    """Plant every fault, run every clean pair, and print what became of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--msprobe", default="")
    parser.add_argument("--keep", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(arguments.keep or tempfile.mkdtemp(prefix="precision-"))
    began, rights = time.time(), 0
    lefts: dict[str, Path] = {}
    pairs: list[tuple[str, str]] = []
    lines: list[str] = []
    for number, fault in enumerate(each for each in faults if arguments.only in f"{each.model} {each.name}"):
        left = lefts.setdefault(fault.model, folder / f"{fault.model}-right")
        if not left.exists():
            record(make, fault.model, left)
        below = WrongKernel(fault.op, fault.number, fault.change) if fault.change else None
        right = record(make, fault.model, folder / f"fault-{number}", fault.patch, below)
        found = compare(left, right)
        hit = found_by_us(fault, found)
        rights += hit
        pairs.append((str(left), str(right)))
        said = f"{found.first.kind}: {found.first.what}" if found.first else "same"
        lines.append(f"{'found ' if hit else 'MISSED'} {fault.model:<7} {fault.name:<32} {said[:110]}")
        print(lines[-1], flush=True)
    print(f"{rights} of {len(pairs)} faults named\n")
    false, count = 0, 0
    for number, (kind, name, patch, level) in enumerate(
        each for each in clean if arguments.only in f"{each[0]} {each[1]}"
    ):
        left = lefts.setdefault(f"{kind}-{level}", folder / f"{kind}-{level}-clean")
        if not left.exists():
            record(make, kind, left, level=level)
        right = record(make, kind, folder / f"clean-{number}", patch, level=level)
        found = compare(left, right)
        false, count = false + (not found.same), count + 1
        pairs.append((str(left), str(right)))
        said = f"{found.first.kind}: {found.first.what}" if found.first else f"same, {found.coverage:.0%} compared"
        lines.append(f"{'clean ' if found.same else 'FALSE '} {kind:<7} {name:<32} {said[:110]}")
        print(lines[-1], flush=True)
    print(f"{false} of {count} clean pairs called different; {time.time() - began:.0f} s")
    if arguments.msprobe:
        print("\nmsprobe on the same dumps: rows, errors, warnings, first row that is not `pass`")
        for line, verdict in zip(lines, msprobe_verdicts(arguments.msprobe, pairs), strict=True):
            print(f"{line[:48]} {verdict[0]:>5} {verdict[1]:>4} {verdict[2]:>4}  {verdict[3]}", flush=True)


if __name__ == "__main__":
    evaluate(FAULTS, CLEAN, make)
