"""The Python part of the simulated operators. It is imported once, when torch_npu initialises the runtime."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from npukit import quiet
from npukit.facts import aclnn
from npukit.report.terminal import say
from npukit.simulate.ops import hf32, registry

quiet.hide_useless()
registry.set_limits(aclnn.limits(os.environ.get("NPUKIT_SIM_CANN_VERSION", ""), os.environ["NPUKIT_SIM_CARD"]))
hf32.install()
kernels = registry.KERNELS
traits = registry.TRAITS


if torch.__version__.startswith("2.1.") and platform.machine() == "aarch64":
    # This build's oneDNN matrix products crash occasionally, on the plain CPU as well.
    torch._C._set_mkldnn_enabled(False)


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU multiplies bf16 matrices faster than fp32: with AMX, two to seven times faster.

    With AVX512_BF16 alone it does not, and without either it is up to 300 times slower. For fp16, AVX512_FP16 gains
    nothing over fp32.
    """
    return " amx_bf16" in Path("/proc/cpuinfo").read_text(errors="replace")


def set_generator_source(draw: Callable[[torch.Generator | None], torch.Generator]) -> None:
    """Let reference kernels draw random numbers from `draw`, which uses the current NPU's generator."""
    registry.draw_generator = draw


def run_compiled_graphs_eagerly() -> None:
    """Let torch.compile on an NPU model run the captured graph eagerly: there is no compiler for a simulated NPU."""
    wrapper: Any = torch._TorchCompileInductorWrapper
    compile_graph = wrapper.__call__

    def call(self: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if not (any(map(_on_npu, inputs)) or any(map(_makes_npu_tensor, graph.graph.nodes))):
            return compile_graph(self, graph, inputs)
        _say_once()
        return graph.forward

    wrapper.__call__ = call


def keep_packed_sequences_packed() -> None:
    """Give the LSTM of an older torch_npu packed sequences in the shape that it expects.

    Its kernels keep such sequences padded, [steps, batch, features], and LSTM.forward joins the first two dimensions.
    Here they are packed, as on a CPU, and get a first dimension of one.
    """
    functions: Any = torch._VF
    lstm = functions.lstm

    def call(data: torch.Tensor, *others: Any) -> Any:
        y, *states = lstm(data, *others)
        joined = _on_npu(others[0]) and torch.nn.LSTM.forward.__module__.startswith("torch_npu")  # batch sizes
        return (y.unsqueeze(0) if joined else y, *states)

    functions.lstm = call


def say_where_torch_npu_is() -> None:
    """Tell an older torch_npu where it is installed: its profiler looks for it only next to torch."""
    if module := sys.modules.get("torch_npu.utils.collect_env"):
        where = Path(str(sys.modules["torch_npu"].__file__)).parents[1]
        module.get_torch_npu_install_path = lambda: str(where)  # type: ignore[attr-defined]


def _on_npu(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


def _makes_npu_tensor(node: torch.fx.Node) -> bool:
    """Whether a node creates a tensor on an NPU by itself, as torch.arange(8, device="npu") does."""
    is_npu = str(node.kwargs.get("device", "")).startswith("npu")
    return is_npu or _on_npu(node.meta.get("example_value", node.meta.get("val")))


@cache
def _say_once() -> None:
    say("torch.compile runs eagerly on the simulated NPU.")


@atexit.register
def _let_autograd_finish() -> None:
    """Yield to autograd's own thread, which may still be releasing the Python objects of the last backward pass.

    If it requested the GIL only after the interpreter has shut down, the process would be aborted.
    """
    time.sleep(0.05)


keep_packed_sequences_packed()
say_where_torch_npu_is()
