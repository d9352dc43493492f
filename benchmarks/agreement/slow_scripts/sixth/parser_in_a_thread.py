"""A thread parses rows of text in advance; it is written in Python, so that it takes turns with the training loop."""
import queue
import threading

import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")
ready = queue.Queue(maxsize=2)
line = ",".join(str((n * 37 % 1000) / 1000) for n in range(64))


def parse(rows):
    parsed = []
    for text in rows:
        parsed.append([float(field) for field in text.split(",")])  # slow: NPK803  # slow: NPK801
    return parsed


def produce():
    while True:
        ready.put(torch.tensor(parse([line] * 1500)))  # slow: NPK803  # slow: NPK801


threading.Thread(target=produce, daemon=True).start()
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
for step in range(12):
    batch = ready.get().to(device)  # slow: NPK803  # slow: NPK801
    loss = (model(batch) - batch.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
