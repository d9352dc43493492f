"""Attention in which every head has a linear layer of its own, one after the other."""
import torch
from torch import nn


class Heads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        make = lambda: nn.ModuleList(nn.Linear(width, width // heads) for _ in range(heads))  # noqa: E731
        self.queries, self.keys, self.values, self.out = make(), make(), make(), nn.Linear(width, width)

    def forward(self, x):
        outputs = []
        for query, key, value in zip(self.queries, self.keys, self.values):  # slow: NPK809
            scores = query(x) @ key(x).transpose(1, 2) / 4  # slow: NPK809
            outputs.append(scores.softmax(-1) @ value(x))  # slow: NPK809
        return self.out(torch.cat(outputs, -1))


model = nn.ModuleList(Heads(128, 32) for _ in range(4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x, target = torch.randn(2, 16, 128), torch.randn(2, 16, 128)
for step in range(12):
    hidden = x
    for layer in model:
        hidden = hidden + layer(hidden)
    loss = (hidden - target).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
