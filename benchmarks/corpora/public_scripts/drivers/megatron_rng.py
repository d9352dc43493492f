"""Dropout under Megatron's random states, by themselves and when a layer is computed again in backward."""

import os

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import (
    checkpoint,
    get_cuda_rng_tracker,
    model_parallel_cuda_manual_seed,
)

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group(backend="nccl")
parallel_state.initialize_model_parallel()
torch.manual_seed(7)
model_parallel_cuda_manual_seed(123)

with get_cuda_rng_tracker().fork():
    first = torch.rand(4, device="cuda")
second = torch.rand(4, device="cuda")
get_cuda_rng_tracker().set_states(get_cuda_rng_tracker().get_states())

layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)


def forward(inputs):
    with get_cuda_rng_tracker().fork():
        return layer(inputs)


for step in range(4):
    inputs = torch.randn(8, 16, device="cuda", requires_grad=True)
    loss = checkpoint(forward, False, inputs).pow(2).mean()
    loss.backward()
    again = forward(inputs.detach())
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} again {again.sum():.6f} numbers {first.sum() + second.sum():.6f}")
torch.distributed.destroy_process_group()
