"""Everything that scripts say to CUDA, checked under `npukit run --auto`; takes a folder with gpu_cuda.pt in it."""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "0"

import torch
from apex import amp

x = torch.ones(2, 2)
y = x.cuda()


def devices() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert os.environ["ASCEND_RT_VISIBLE_DEVICES"] == "0"
    assert y.device.type == "cuda" and x.device.type != "cuda"
    assert y.device == torch.device("cuda:0") and y.is_cuda
    assert {"cuda": 1, "cpu": 2}[y.device.type] == 1
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.asarray([1.0], device="cuda").is_cuda
    torch.cuda.nvtx.range_push("step")
    assert torch.cuda.comm.broadcast


def moves() -> None:
    for device in (None, 0, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
        assert x.cuda(device, non_blocking=True).is_cuda
        assert torch.nn.Linear(1, 1).cuda(device).weight.is_cuda


def types() -> None:
    assert x.type("torch.cuda.HalfTensor").dtype == torch.float16
    assert y.type() == "torch.cuda.FloatTensor" and x.type() == "torch.FloatTensor"
    assert torch.cuda.DoubleTensor([1.0]).dtype == torch.float64
    torch.set_default_tensor_type("torch.cuda.HalfTensor")
    assert torch.zeros(1).is_cuda and torch.zeros(1).dtype == torch.float16
    torch.set_default_tensor_type(torch.FloatTensor)
    assert not torch.zeros(1).is_cuda and torch.zeros(1).dtype == torch.float32


def parallel_and_scaled() -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=[0]).cuda()
    assert model(x).is_cuda and model.module.weight.is_cuda
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.amp.autocast("cuda", dtype=torch.float16):
        out = model(x)
    assert out.dtype == torch.float16
    scaler.scale(out.float().mean()).backward()
    scaler.step(optimizer)
    scaler.update()


def files(folder: Path) -> None:
    torch.save(y, folder / "model_cuda.pt")
    assert torch.load(str(folder / "model_cuda.pt")).is_cuda
    assert torch.load(str(folder / "gpu_cuda.pt")).is_cuda
    assert torch.load(str(folder / "gpu_cuda.pt"), map_location={"cuda:0": "cuda:0"}).is_cuda
    assert not torch.load(str(folder / "gpu_cuda.pt"), map_location={"cuda:0": "cpu"}).is_cuda
    assert torch.load(str(folder / "gpu_cuda.pt"), map_location=torch.device("cuda:0")).is_cuda


def apex() -> None:
    model = torch.nn.Linear(2, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=128.0)
    before = model.weight.detach().clone()
    for _ in range(2):  # accumulates
        with amp.scale_loss(model(y).float().mean(), optimizer) as loss:
            loss.backward()
    torch.testing.assert_close(model.weight.grad.cpu(), torch.full((1, 2), 2.0))
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.2)
    optimizer.zero_grad()
    with amp.scale_loss(model(y).float().mean() * 1e30, optimizer) as loss:
        loss.backward()  # overflows: the next step is left out, the one after is not
    after = model.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), after)


def in_child(queue: Any) -> None:
    queue.put(x.cuda().device.type == "cuda" and torch.cuda.is_available())


if __name__ == "__main__":
    devices()
    moves()
    types()
    parallel_and_scaled()
    files(Path(sys.argv[1]))
    apex()
    spawned = multiprocessing.get_context("spawn")
    answers = spawned.Queue()
    child = spawned.Process(target=in_child, args=(answers,))
    child.start()
    assert answers.get(timeout=120)
    print("all as on a GPU")
