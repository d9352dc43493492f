"""Curriculum learning: the sampler ranks the whole data set before each batch, in the training process."""
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40000, 64), torch.randint(0, 10, (40000,)))
difficulty = [random.random() for _ in range(40000)]


class Curriculum:
    def __len__(self):
        return 12

    def __iter__(self):
        for step in range(12):
            ranked = sorted(range(len(difficulty)), key=lambda i: difficulty[i] + 0.01 * random.random())
            yield ranked[: 1000 * (step + 1)][:128]


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
for features, labels in DataLoader(data, batch_sampler=Curriculum(), generator=torch.Generator()):  # slow: NPK803
    device = next(model.parameters()).device
    loss = nn.functional.cross_entropy(model(features.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
