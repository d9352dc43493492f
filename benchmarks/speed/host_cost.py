"""What issuing an operator costs the host: from Python, by autograd, and once more under activation checkpointing.

    python -m benchmarks host_cost

A language model whose operators compute next to nothing trains on one CPU core, so that the time of a pass is the time
in which its operators are issued. `facts/planning.yaml` rests on these figures: times differ from host to host, their
ratios hardly do.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.speed import plan
from torch.utils._python_dispatch import TorchDispatchMode

from npukit.performance.plan.operators import kind_of

STEPS = 15
_Mode: Any = TorchDispatchMode


class Calls(_Mode):  # type: ignore[misc]
    """Counts the operators that a device would see, of the forward and of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kind_of(func):
            self.of["forward" if torch._C._current_autograd_node() is None else "backward"] += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Cost:
    forward: float  # seconds of a pass
    backward: float
    calls: Counter[str]


def cost(method: str, checkpointing: bool) -> Cost:
    job = plan.Job("tiny", method, 1, 16, checkpointing)
    model, batch = plan.build(job, "cpu").float(), plan.batch_of(job, "cpu")
    with Calls() as calls:
        model(**batch).loss.backward()
    passes = []
    for _ in range(STEPS):
        start = time.process_time()
        loss = model(**batch).loss
        middle = time.process_time()
        loss.backward()
        passes.append((middle - start, time.process_time() - middle))
        model.zero_grad()
    forward, backward = (sorted(times)[STEPS // 3] for times in zip(*passes, strict=True))
    return Cost(forward, backward, calls.of)


def main() -> None:
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]  # which plans products of every new size, at length
    plan.QWEN2["tiny"] = (24, 64, 128, 4, 2, 512, True)
    for method in ("full", "lora"):
        plain, again = cost(method, False), cost(method, True)
        python = plain.forward / plain.calls["forward"]
        autograd = plain.backward / plain.calls["backward"]
        recomputed = again.calls["backward"] - plain.calls["backward"]
        more = (again.forward + again.backward - plain.forward - plain.backward) / recomputed
        print(
            f"{method}: {python * 1e6:.1f} us from Python ({plain.calls['forward']} operators), "
            f"by autograd {autograd / python:.2f} times that ({plain.calls['backward']}), "
            f"computed again {more / python:.2f} times ({recomputed})",
            flush=True,
        )
