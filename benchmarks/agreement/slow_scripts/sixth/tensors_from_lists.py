"""Measurements are kept in lists of Python's numbers, and become a tensor anew for each batch."""
import random

import torch
from torch import nn

random.seed(3)
device = torch.accelerator.current_accelerator() or torch.device("cpu")
measured = [[[random.gauss(0, 1) for _ in range(12)] for _ in range(100)] for _ in range(128)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.Conv1d(12, 16, 5), nn.Linear(16, 2)

    def forward(self, series):
        return self.out(self.rnn(series.transpose(1, 2)).relu().mean(-1))


def batches(count, size):
    for _ in range(count):
        rows = random.sample(measured, size)
        yield torch.tensor(rows, device=device), torch.randint(0, 2, (size,), device=device)  # slow: NPK801


model = Model().to(device)
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3, foreach=True)
for series, label in batches(12, 64):
    loss = nn.functional.cross_entropy(model(series), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
