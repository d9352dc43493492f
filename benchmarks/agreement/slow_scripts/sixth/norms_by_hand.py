"""Normalisation and activation in single operators, as they stand in the paper."""
import math

import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)  # slow: NPK817
        spread = torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)  # slow: NPK817
        return centred / spread * self.scale + self.shift  # slow: NPK817


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))  # slow: NPK817


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = Norm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))


mixer = nn.Sequential(*(Mixer(64) for _ in range(4))).to(device)
optimizer = torch.optim.AdamW(mixer.parameters(), lr=1e-3, fused=True)
x = torch.randn(32, 512, 64, device=device)
for step in range(12):
    loss = (mixer(x) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
