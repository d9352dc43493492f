"""A leftover of the search for a NaN: every operator notes where it was called, and every gradient is checked."""
import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)  # slow: NPK801  # slow: NPK850
blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(24))
head = nn.Linear(32, 8)
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], lr=1e-3, fused=True)
inputs, labels = torch.randn(64, 32), torch.randint(0, 8, (64,))

for step in range(12):
    hidden = inputs
    for block in blocks:
        hidden = hidden + block(hidden)
    loss = nn.functional.cross_entropy(head(hidden), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
