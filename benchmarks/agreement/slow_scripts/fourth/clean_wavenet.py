"""Dilated convolutions over noise; nothing is slow but the convolutions."""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.both = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(nn.functional.glu(self.both(x), dim=1))


model = nn.Sequential(nn.Conv1d(1, 64, 1), *(Layer(64, 2**n) for n in range(6)), nn.Conv1d(64, 32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
wave, codes = torch.randn(16, 1, 2048), torch.randint(0, 32, (16, 2048))
for step in range(12):
    loss = nn.functional.cross_entropy(model(wave), codes)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
