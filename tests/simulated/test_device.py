"""What of the simulated device needs a process of its own: faults, other cards, variables, the first use."""

from __future__ import annotations

from typing import Any

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


FIRST_USE = """
import torch, torch_npu
torch.ones(3, device="npu:1") + 1
assert [torch_npu._C._npu_hasPrimaryContext(device) for device in range(2)] == [False, True]
"""


def test_a_device_that_is_not_used_is_not_opened(simulated: Any) -> None:
    simulated(FIRST_USE, devices=2, env={"NPU_ASD_ENABLE": "1"})  # which asks for operators that torch_npu compiles
