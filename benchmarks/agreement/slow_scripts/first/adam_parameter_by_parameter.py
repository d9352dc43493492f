import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))


model = nn.Sequential(*[Residual(32) for _ in range(60)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
x = torch.randn(16, 32)
for _ in range(14):
    model(x).square().mean().backward()
    optimizer.step()  # slow: NPK816
    optimizer.zero_grad()
