"""What the simulated device owes its users: memory, streams, random numbers, types, other devices."""

from __future__ import annotations

from typing import Any

MEMORY = """
import torch
free, total = torch.npu.mem_get_info()
assert 60 << 30 < free <= total == 64 << 30, (free, total)
large = torch.empty(40 << 30, dtype=torch.uint8, device="npu")
assert torch.npu.memory_allocated() >= 40 << 30
del large
torch.npu.empty_cache()
zeros = torch.zeros(10 << 30, dtype=torch.uint8, device="npu")
assert zeros[::1 << 28].sum().item() == 0
del zeros
torch.npu.empty_cache()
assert torch.npu.memory_reserved() == 0
try:
    torch.empty(65 << 30, dtype=torch.uint8, device="npu")
except torch.OutOfMemoryError as error:
    assert "NPU out of memory. Tried to allocate 65.00 GiB" in str(error), error
else:
    raise AssertionError("65 GiB fit on a 64 GiB card")
a = torch.ones(1000, 1000, device="npu")
before = torch.npu.memory_allocated()
b = a @ a
assert torch.npu.memory_allocated() - before < 4.1e6, "a product costs its result and nothing else"
print(torch.npu.max_memory_allocated() >> 30)
"""


def test_memory_is_the_cards_not_the_hosts(simulated: Any) -> None:
    assert simulated(MEMORY) == "40"


MISSING_SYNCHRONISATION = """
import torch
source = torch.arange(1000, device="npu")
target = torch.zeros(1000, dtype=torch.int64).pin_memory()
target.copy_(source, non_blocking=True)
early = target[-1].item()
torch.npu.synchronize()
side = torch.npu.Stream()
event = torch.npu.Event()
pinned = torch.full((1000,), 7).pin_memory()
with torch.npu.stream(side):
    moved = torch.zeros(1000, dtype=torch.int64, device="npu")
    moved.copy_(pinned, non_blocking=True)
    event.record()
unordered = (moved + 0).max().item()
event.wait()
ordered = (moved + 0).max().item()
print(early, target[-1].item(), unordered, ordered)
"""


def test_a_missing_synchronisation_shows(simulated: Any) -> None:
    """Slow streams make sure that what was not waited for is not there yet."""
    assert simulated(MISSING_SYNCHRONISATION, faults=["slow-stream=500"]) == "0 999 0 7"


RANDOM = """
import torch
from torch.utils.checkpoint import checkpoint

def draw():
    return torch.rand(4, device="npu").tolist()

torch.manual_seed(5)
first, second = draw(), draw()
torch.npu.manual_seed(5)
assert draw() == first != second
state = torch.npu.get_rng_state()
assert draw() == second
torch.npu.set_rng_state(state)
assert draw() == second
torch.npu.set_rng_state(state)
with torch.random.fork_rng(device_type="npu"):
    torch.npu.manual_seed(99)
    draw()
assert draw() == second, "a fork of the generator leaves it where it was"
own = torch.Generator("npu").manual_seed(1)
a = torch.randn(4, device="npu", generator=own)
assert torch.equal(a, torch.randn(4, device="npu", generator=torch.Generator("npu").manual_seed(1)))
torch.npu.set_rng_state(state)
assert draw() == second, "a generator of one's own leaves the default one alone"
try:
    torch.randn(4, device="npu", generator=torch.Generator())
except RuntimeError as error:
    assert "generator" in str(error)
else:
    raise AssertionError("a CPU generator was taken for the NPU")

host = torch.get_rng_state()
x = torch.ones(1000, device="npu", requires_grad=True)
drop = torch.nn.Dropout(0.5)
y = checkpoint(drop, x, use_reentrant=False)
y.sum().backward()
assert torch.equal(x.grad, y.detach()), "checkpointing drops the same elements again"
assert 300 < (y == 0).sum().item() < 700
assert torch.equal(host, torch.get_rng_state()), "the NPU does not draw from the CPU's generator"
assert not torch.equal(torch.nn.functional.dropout(x), torch.nn.functional.dropout(x))
"""


def test_random_numbers_follow_the_npus_generators(simulated: Any) -> None:
    simulated(RANDOM)


SEVERAL_DEVICES = """
import torch, torch_npu
x = torch.ones(3, device="npu:1")
assert (x + 1).device == torch.device("npu:1") and torch.npu.current_device() == 0
assert [torch_npu._C._npu_hasPrimaryContext(device) for device in range(2)] == [False, True]
assert x.to("npu:0").sum().item() == 3 and torch.npu.memory_allocated(1) > 0
try:
    x + torch.ones(3, device="npu:0")
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("tensors of two devices were added")
try:
    x + torch.ones(3)
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("a CPU tensor was added to an NPU tensor")
assert (x * torch.tensor(2.0)).sum().item() == 6, "a number on the CPU is welcome"
"""


def test_devices_are_kept_apart(simulated: Any) -> None:
    simulated(SEVERAL_DEVICES, devices=2)


OLD_CARD = """
import torch
assert not torch.npu.is_bf16_supported()
assert (torch.ones(3, device="npu", dtype=torch.float16) + 1).sum().item() == 6
try:
    torch.ones(3, device="npu").bfloat16() + 1
except RuntimeError as error:
    print(error)
"""


def test_a_910A_has_no_bf16(simulated: Any) -> None:
    assert "bfloat16" in simulated(OLD_CARD, card="910A")


COMPILED = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).npu()
x = torch.randn(4, 8, device="npu")
compiled = torch.compile(model)
torch.testing.assert_close(compiled(x), model(x))
compiled(x).sum().backward()
print(model[0].weight.grad is not None)
"""


def test_torch_compile_runs_eagerly(simulated: Any) -> None:
    assert simulated(COMPILED) == "True"


FALLBACK = """
import os, torch
os.dup2(1, 2)
torch.linalg.eigvalsh(torch.eye(3, device="npu"))
try:
    torch.ops.npu.npu_fused_causal_conv1d(*[torch.ones(1, device="npu")] * 3)
except Exception as error:
    print(str(error).splitlines()[0])
"""


def test_what_torch_npu_or_the_simulator_lacks_is_named(simulated: Any) -> None:
    said = simulated(FALLBACK)
    assert "'aten::_linalg_eigh.eigenvalues' is not currently supported on the NPU backend" in said


def test_variables_that_ask_for_compiled_operators_do_not_hinder_the_import(simulated: Any) -> None:
    assert simulated("import torch; print(torch.npu.is_available())", env={"NPU_ASD_ENABLE": "1"}) == "True"
