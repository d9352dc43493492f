"""CUDA code on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.shim.table import TABLE, owner_of

CUDA_CODE = """
import gc, sys, weakref
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
torch.cuda.set_device(0)
device = torch.device("cuda", 0)
model = torch.nn.Linear(4, 4).cuda()
model.to(0), model.to(device), model.to("cuda:0", torch.float32)
x = torch.ones(2, 4, device="cuda").to(device, non_blocking=True).cuda(0)
x = x + torch.zeros(4, device=0) + torch.tensor([1.0] * 4, device=device) + torch.cuda.FloatTensor([1] * 4)
x.type("torch.cuda.FloatTensor"), x.pin_memory(), torch.randn(3, device="cuda")
assert torch.get_autocast_gpu_dtype() == torch.get_autocast_dtype("cuda") == torch.float16  # the CPU's is bfloat16
with torch.cuda.amp.autocast():
    assert model(x).dtype == torch.float16 == torch.get_autocast_gpu_dtype() and torch.is_autocast_enabled()
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert model(x).dtype == torch.bfloat16
image, kernel = torch.rand(1, 512, 3, 3), torch.rand(8, 512, 3, 3)
exact = torch.conv2d(image.half().double(), kernel.half().double())
with torch.cuda.amp.autocast():  # sums in float32, which not every CPU does by itself
    assert torch.allclose(torch.conv2d(image, weight=kernel).double(), exact, rtol=6e-4)
assert torch.allclose(torch.nn.functional.conv2d(image.half(), kernel.half()).double(), exact, rtol=6e-4)
scores, kinds = torch.randn(6, 5).half(), torch.arange(6) % 5
with torch.cuda.amp.autocast():  # log_softmax rounds to float16, what is summed of it is not rounded again
    loss = torch.nn.functional.cross_entropy(scores, kinds, reduction="sum")
assert loss.dtype == torch.float32 and loss == -scores.log_softmax(1)[range(6), kinds].float().sum()
scaler, optimizer = torch.cuda.amp.GradScaler(), torch.optim.SGD(model.parameters(), lr=0.1)
scaler.scale(model(x).sum()).backward()
scaler.step(optimizer), scaler.update()
assert scaler.get_scale() > 1
torch.save({"w": x}, sys.argv[1])
torch.load(sys.argv[1], map_location="cuda:0"), torch.load(sys.argv[1], map_location={"cpu": "cuda:0"})
with torch.cuda.stream(torch.cuda.Stream()):
    start = torch.cuda.Event(enable_timing=True)
    start.record(), torch.cuda.synchronize(), start.elapsed_time(start)
    x.record_stream(torch.cuda.current_stream())
assert torch.randn(3, device="meta", requires_grad=True).is_leaf
assert torch.rand_like(x, device="meta", requires_grad=True).is_leaf
assert torch.device(0) == x.device == device and torch.load(sys.argv[1], map_location=device)
torch.cuda.set_rng_state(torch.cuda.get_rng_state()), torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
state = torch.cuda.random.get_rng_state(device=device)  # as Megatron-LM sets it
torch.cuda._lazy_init(), torch.cuda._lazy_call(lambda: torch.cuda.default_generators[0].set_state(state))
torch.cuda.get_device_properties(0).total_memory, torch.cuda.memory_summary(), torch.cuda.reset_peak_memory_stats()
with torch.random.fork_rng(devices=[0]), torch.random.fork_rng([0], True, device_type="cuda"):
    torch.manual_seed(1)
torch.cuda.empty_cache(), torch.cuda.max_memory_allocated(), torch.cuda.manual_seed_all(3)
torch.rand(2, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda")
dist.init_process_group("nccl", init_method="file://" + sys.argv[1] + ".store", rank=0, world_size=1, device_id=device)
dist.init_device_mesh("cuda", (1,))
ddp = DDP(model, device_ids=[0], output_device=0)
assert torch.nn.DataParallel(model).module(x).shape == ddp(x).shape
FSDP = dist.fsdp.FullyShardedDataParallel
sharded = FSDP(torch.nn.Linear(4, 4), device_id=torch.cuda.current_device(), sync_module_states=True)
sharded(x).sum().backward()
group = weakref.ref(dist.group.WORLD)
del ddp, sharded
gc.collect(), dist.destroy_process_group(), gc.collect()
assert group() is not None  # gloo's may hang where it goes right after a collective
print("done")
"""

SPAWNS = """
import torch
def child(rank):
    print("loss", torch.randn(1, device="cuda").cuda(rank).item())
if __name__ == "__main__":
    torch.multiprocessing.spawn(child)
"""


@pytest.mark.usefixtures("copies")
def test_spawned_processes_compute_on_the_cpu_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNS)
    options = json.dumps({"cuda_is_cpu": True, "devices": 1, "port": 0, "watch": ""})
    command = [sys.executable, "-m", "npukit.verify.observe", options, "script.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout.startswith("loss "), result.stderr


def test_what_training_scripts_ask_of_cuda(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CUDA_CODE)
    options = json.dumps({"cuda_is_cpu": True, "devices": 1, "port": 0, "watch": ""})
    command = [sys.executable, "-m", "npukit.verify.observe", options, "script.py", str(tmp_path / "saved.pt")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "done\n", result.stderr


CUDA_BUILD = """
import torch
torch._C._accelerator_getAccelerator = lambda: torch.device("cuda")  # as in a torch that was built for CUDA
weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
weight.grad = torch.ones(2)
torch.optim.AdamW([weight]).step()  # asks the accelerator whether it captures a graph
print(torch.accelerator.is_available())
"""


@pytest.mark.usefixtures("copies")
def test_a_torch_that_was_built_for_cuda_does_not_ask_for_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CUDA_BUILD)
    options = json.dumps({"cuda_is_cpu": True, "devices": 1, "port": 0, "watch": ""})
    command = [sys.executable, "-m", "npukit.verify.observe", options, "script.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout == "False\n", result.stderr


def test_every_name_of_the_table_is_one_of_this_torch() -> None:
    assert [row.place for row in TABLE if owner_of(row.place)[0] is None] == []
