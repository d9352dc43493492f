"""Debugging that stayed in: logits and gradients are formatted for a log in each step."""
import io

import torch
from torch import nn

torch.set_printoptions(profile="full")
log = io.StringIO()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 40))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
x, y = torch.randn(64, 64), torch.randint(0, 40, (64,))

for step in range(12):
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.seek(0)
    print(step, logits, file=log)  # slow: NPK801
