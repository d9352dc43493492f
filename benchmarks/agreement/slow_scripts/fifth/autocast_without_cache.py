"""A recurrent decoder under autocast whose cache is off: each of its steps casts the same weights again."""
import torch
from torch import nn

update, reset, head = nn.Linear(768, 512), nn.Linear(768, 512), nn.Linear(512, 64)
weights = [*update.parameters(), *reset.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.05, foreach=True)
tokens, labels = torch.randn(16, 24, 256), torch.randint(0, 64, (16, 24))
kind = tokens.device.type

for step in range(12):
    state, losses = torch.zeros(16, 512), 0.0
    with torch.autocast(kind, torch.bfloat16, cache_enabled=False):
        for t in range(24):
            both = torch.cat([tokens[:, t], state], 1)
            gate = torch.sigmoid(update(both))  # slow: NPK814
            state = gate * state + (1 - gate) * torch.tanh(reset(both))  # slow: NPK814
            losses = losses + nn.functional.cross_entropy(head(state).float(), labels[:, t])
    optimizer.zero_grad()
    losses.backward()
    optimizer.step()
