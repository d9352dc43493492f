"""How well feature-value detection finds faults in gradients, beside torch_npu's rule.

    python -m benchmarks feature_detection [--steps 200] [--seeds 3]

Five models are trained on made-up data (and on the text of Python's own library) in fp32, bf16 and fp16, on the CPU.
- False alarms: of runs to which nothing was done. The data has odd rows, the learning rates are high, on purpose.
- Found: in each of the first ten steps, and in every fifth later, a copy of the detector is shown the same gradients
  with a fault in one parameter: one element that is 10, 100 or 1000 times the largest (a flipped bit), or the whole
  gradient times as much.
The peer is the rule torch_npu 2.13 uses, given every parameter (by itself it looks at every third), several cards
(on one it does not run) and fp16 as if it were fp32 (it leaves fp16 gradients out).
"""

from __future__ import annotations

import copy
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from npukit.precision.features import FeatureDetector

JUMPS = (10, 100, 1000)
Gradients = list[Tensor]
Batches = Iterator[tuple[Tensor, Tensor]]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + functional.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1)


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        return x + added


class Low(nn.Module):
    """A linear layer with a low-rank adapter, whose first gradients are 0."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(8, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * (x @ self.a.T) @ self.b.T  # type: ignore[no-any-return]


def transformer() -> nn.Module:
    layers = [layer for _ in range(2) for layer in (Attention(64), Mlp(64))]
    return nn.Sequential(nn.Embedding(256, 64), *layers, nn.LayerNorm(64), nn.Linear(64, 256, bias=False))


def adapters() -> nn.Module:
    model = transformer().requires_grad_(False)
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and not isinstance(module, Low):
                setattr(module, name, Low(child))
    return model


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


def vectors(seed: int, rows: int, shape: tuple[int, ...]) -> Batches:
    made = torch.Generator().manual_seed(seed)
    truth = torch.randn(math.prod(shape), 10, generator=torch.Generator().manual_seed(7))
    while True:
        x = torch.randn(rows, *shape, generator=made)
        labels = (x.flatten(1) @ truth).argmax(1)
        if torch.rand(1, generator=made) < 0.05:
            x[0] *= 10  # an odd row
        yield x, labels


def text(seed: int, rows: int) -> Batches:
    made = random.Random(seed)
    source = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py"))[:60])
    while True:
        starts = [made.randrange(len(source) - 49) for _ in range(rows)]
        x = torch.tensor([list(source[start : start + 49]) for start in starts])
        labels = x[:, 1:].clone()
        for row in labels:
            row[made.randrange(4, 48) :] = -100  # rows of all lengths
        yield x[:, :-1], labels


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batches], float]] = {
    "MLP, 8 rows": (perceptron, lambda seed: vectors(seed, 8, (32,)), 3e-3),
    "CNN, 8 rows": (convolutions, lambda seed: vectors(seed, 8, (3, 16, 16)), 3e-3),
    "transformer, 4 rows": (transformer, lambda seed: text(seed, 4), 3e-3),
    "transformer, 2 rows, lr 1e-2": (transformer, lambda seed: text(seed, 2), 1e-2),
    "LoRA, 4 rows": (adapters, lambda seed: text(seed, 4), 3e-3),
}


class Ours:
    """The detector of npukit, given gradients by hand."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.detector = FeatureDetector(model, dtype)

    def copied(self) -> Ours:
        other = copy.copy(self)
        other.detector = copy.copy(self.detector)
        other.detector._past = self.detector._past.clone()
        other.detector._seen, other.detector._found = [], []
        return other

    def check(self, step: int, gradients: Gradients, scale: float) -> bool:
        self.detector._seen.clear()
        for number, gradient in enumerate(gradients):
            self.detector._saw(number, gradient)
        self.detector.check(step, scale)
        return bool(self.detector.read())


class TorchNpu:
    """torch_npu's rule, with the square of the largest magnitude."""

    def __init__(self) -> None:
        self.state: dict[int, tuple[float, float, int]] = {}

    def copied(self) -> TorchNpu:
        other = TorchNpu()
        other.state = dict(self.state)
        return other

    def check(self, step: int, gradients: Gradients, scale: float) -> bool:
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            return False  # with a scaler Inf is nothing unusual, and the step is skipped
        odd = [self._odd(number, float(gradient.abs().max()) ** 2) for number, gradient in enumerate(gradients)]
        return any(odd)

    def _odd(self, number: int, value: float) -> bool:
        mean, before, count = self.state.get(number, (0.0, 0.0, 0))
        if value == 0:
            return False
        known = mean / (1 - 0.99**count) if count >= 10 else math.inf
        if value > 1e6 * known and abs(value - before) > 1e6 * known:
            self.state[number] = (mean, value, count)
            return True
        if count < 10 or value <= 100 * known:
            mean, count = 0.99 * mean + 0.01 * value, count + 1
        self.state[number] = (mean, value, count)
        return False


def faulty(gradients: Gradients, jump: int, whole: bool, chance: random.Random) -> Gradients:
    """The same gradients with a fault in one that is not 0."""
    changed = list(gradients)
    number = chance.choice([index for index, gradient in enumerate(gradients) if gradient.abs().max() > 0])
    changed[number] = gradients[number].clone()
    if whole:
        changed[number] *= jump
    else:
        element = changed[number].view(-1)
        element[chance.randrange(len(element))] = gradients[number].abs().max() * jump
    return changed


class Tally:
    """False alarms and faults found, by what they were."""

    def __init__(self) -> None:
        self.alarms: Counter[tuple[str, str, str]] = Counter()
        self.steps: Counter[tuple[str, str]] = Counter()
        self.found: Counter[tuple[str, str, int, str]] = Counter()
        self.tried: Counter[tuple[str, int, str]] = Counter()


def gradients_of_run(
    name: str, dtype: torch.dtype, seed: int, steps: int
) -> Iterator[tuple[nn.Module, Gradients, float]]:
    """Train, with warm-up, clipping and, in fp16, a scaler; yields each step's gradients before they are clipped."""
    make_model, make_batches, rate = MODELS[name]
    torch.manual_seed(seed)
    model, batches = make_model(), make_batches(seed)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for step in range(steps):
        x, labels = next(batches)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            out = model(x)
        loss = functional.cross_entropy(out.float().flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        seen = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
            for weight in weights
            if weight.dim() > 1
        ]
        yield model, seen, scaler.get_scale()
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 10)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()


def one_run(name: str, dtype: torch.dtype, seed: int, steps: int, tally: Tally) -> None:
    chance = random.Random(seed)
    precision = str(dtype).removeprefix("torch.")
    rules: dict[str, Ours | TorchNpu] = {"torch_npu": TorchNpu()}
    waiting: list[tuple[tuple[str, str, int, str], Ours | TorchNpu, bool]] = []
    for step, (model, gradients, scale) in enumerate(gradients_of_run(name, dtype, seed, steps), start=1):
        if step == 1:
            rules["npukit"] = Ours(model, dtype)
        # The first step is judged by the second: who was shown a fault sees one step more.
        for key, rule, detected in waiting:
            tally.found[key] += detected or rule.check(step, gradients, scale)
        waiting = []
        overflow = not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if (step <= 10 or step % 5 == 0) and step < steps and not overflow:
            when = "steps 1-10" if step <= 10 else "later"
            for kind in ("one element", "whole gradient"):
                for jump in JUMPS:
                    shown = faulty(gradients, jump, kind == "whole gradient", chance)
                    tally.tried[kind, jump, when] += 1
                    for who, rule in rules.items():
                        other = rule.copied()
                        waiting.append(((who, kind, jump, when), other, other.check(step, shown, scale)))
        for who, rule in rules.items():
            tally.alarms[who, name, precision] += rule.check(step, gradients, scale)
        tally.steps[name, precision] += 1


def show(tally: Tally) -> None:
    print("\n| ordinary runs | precision | steps | false alarms, npukit | torch_npu's rule |\n|---|---|---|---|---|")
    for (name, precision), steps in tally.steps.items():
        alarms = [tally.alarms[who, name, precision] for who in ("npukit", "torch_npu")]
        print(f"| {name} | {precision} | {steps:,} | {alarms[0]} | {alarms[1]} |")
    print("\n| fault | times | when | tried | found, npukit | torch_npu's rule |\n|---|---|---|---|---|---|")
    for (kind, jump, when), tried in tally.tried.items():
        shares = [tally.found[who, kind, jump, when] / tried for who in ("npukit", "torch_npu")]
        print(f"| {kind} | {jump} | {when} | {tried:,} | {shares[0]:.1%} | {shares[1]:.1%} |")


def main(steps: int = 200, seeds: int = 3) -> None:
    torch.set_num_threads(1)
    tally, start = Tally(), time.perf_counter()
    for name in MODELS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for seed in range(seeds):
                one_run(name, dtype, seed, steps, tally)
            print(f"{name}, {dtype}: {time.perf_counter() - start:.0f} s", flush=True)
    show(tally)
