"""--compute shapes and --trace-ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHAPES = """
import re, torch
from pathlib import Path
hidden, layers = 8192, 12
model = torch.nn.Sequential(*[torch.nn.Linear(hidden, hidden, bias=False, device="npu") for _ in range(layers)])
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(512, hidden, device="npu")
loss = model(x).square().mean()
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
assert isinstance(loss.item(), float)
small = torch.tensor([3, 0, 5]).npu()
assert small.tolist() == [3, 0, 5] and small.nonzero().shape == (2, 1), "what steers Python still answers"
weights = layers * hidden * hidden * 4
most = int(re.search("VmHWM:\\s*([0-9]+)", Path("/proc/self/status").read_text())[1])  # ru_maxrss knows the parent's
print(torch.npu.max_memory_allocated() / weights, most / 2**20)
"""


ATTENTION = """
import torch_npu
q, k, v = (torch.randn(2, 4, 64, 16, device="npu", requires_grad=True) for _ in range(3))
for options in ({}, {"is_causal": True}, {"dropout_p": 0.5}):
    torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).sum().backward()
ends = [20, 64]
rows = [x.detach().flatten(0, 1).transpose(0, 1).contiguous().requires_grad_() for x in (q, k, v)]
torch_npu.npu_fusion_attention(
    *rows, 8, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends, keep_prob=0.5
)[0].sum().backward()
assert rows[1].grad.shape == rows[1].shape and rows[1].grad.device.type == "npu"
"""

GRAPH = """
x, graph = torch.ones(1 << 20, device="npu"), torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = torch.nn.functional.dropout(x).view(1024, 1024) @ x.view(1024, 1024)
graph.replay()
torch.npu.synchronize()
assert y.shape == (1024, 1024)
"""


def test_shapes_only_keeps_the_memory_figures_and_needs_no_memory(simulated: Any) -> None:
    of_weights, host_gib = map(float, simulated(SHAPES + ATTENTION + GRAPH, compute="shapes").split())
    assert 5 <= of_weights < 5.2, "weights, gradients, AdamW's two moments and its temporary, and little more"
    assert host_gib < 1


STEERING = """
import torch
def after_others(make):
    others = [torch.full((size,), -1).npu() for size in (1, 8, 64, 128) * 8]  # as floats: NaN
    del others  # and what is made next lies where they were
    return make().cpu().tolist()
x = torch.tensor([1.0, 2.0]).npu()
counter = torch.zeros(2, device="npu")
counter += 3
print([
    after_others(lambda: x),
    after_others(lambda: x.to(torch.int64)),
    after_others(lambda: torch.zeros(2, device="npu")),
    after_others(lambda: torch.ones((), device="npu")),
    after_others(lambda: torch.arange(3, device="npu")),
    after_others(lambda: torch.randperm(3, device="npu").cpu().sort().values),
    after_others(lambda: counter),
    after_others(lambda: x + x),
    after_others(lambda: torch.stack([x, x]).sum()),
    after_others(lambda: torch.add(x, x, out=torch.empty(2, device="npu"))),
])
"""


def test_what_is_not_computed_is_zero_and_what_the_program_says_is_known(simulated: Any) -> None:
    known = [[1, 2], [1, 2], [0, 0], 1, [0, 1, 2], [0, 1, 2], [3, 3]]
    assert json.loads(simulated(STEERING, compute="shapes")) == [*known, [0, 0], 0, [0, 0]]


TRACED = """
import torch
model = torch.nn.Linear(4, 2).npu()
for _ in range(3):
    model(torch.ones(5, 4, device="npu")).sum().backward()
torch.linalg.eigvalsh(torch.eye(3, device="npu"))
torch.eye(3, dtype=torch.float64).npu().erfinv()
x = torch.ones(2, device="npu", requires_grad=True)
torch.ops.npu.npu_dtype_cast(x, torch.float16).sum().backward()  # torch_npu makes this of other operators
try:
    torch.ops.npu.npu_fused_causal_conv1d(x, x, x)
except NotImplementedError:
    pass
"""


def test_the_trace_says_what_ran_from_where_and_how_torch_npu_supports_it(simulated: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRACED)
    simulated(f"import runpy; runpy.run_path({str(script)!r})", trace=tmp_path / "trace.json")
    ops = json.loads((tmp_path / "trace.json").read_text())["ops"]
    forward = next(op for op in ops if op["op"] == "aten::addmm")
    assert forward == {
        "op": "aten::addmm",
        "support": "npu",
        "card": "documented",
        "line": f"{script}:5",
        "backward": False,
        "inputs": [{"shape": shape, "dtype": "Float"} for shape in ([2], [5, 4], [4, 2])],
        "count": 3,
    }
    backward = next(op for op in ops if op["op"] == "aten::mm")
    assert backward["backward"] and backward["count"] == 3 and backward["line"] == f"{script}:5"
    assert {op["op"] for op in ops if op["support"] == "cpu_fallback"} == {"aten::_linalg_eigh.eigenvalues"}
    assert {op["op"] for op in ops if op["card"] == "not documented"} == {"aten::erfinv"}
    assert {op["op"] for op in ops if op["support"] == "not_simulated"} == {"npu::npu_fused_causal_conv1d"}
