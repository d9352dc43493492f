"""A monitor in the loop: a command is started in each step to read how busy the machine is."""
import subprocess

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
pictures, labels = torch.rand(32, 3, 32, 32), torch.randint(0, 10, (32,))
history = []


def utilisation():
    listing = subprocess.run(["sh", "-c", "sleep 0.1; cat /proc/loadavg"], capture_output=True, text=True)  # slow: NPK801
    return float(listing.stdout.split()[0])


for step in range(12):
    loss = nn.functional.cross_entropy(model(pictures), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(utilisation())
