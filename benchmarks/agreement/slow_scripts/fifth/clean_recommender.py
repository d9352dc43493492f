"""Embeddings of users and items, and a deep net over both."""
import torch
from torch import nn

users, items = nn.EmbeddingBag(5000, 64, mode="mean"), nn.Embedding(5000, 64)
net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.Adam([*users.parameters(), *items.parameters(), *net.parameters()], lr=1e-3, fused=True)
seen, item, clicked = torch.randint(0, 5000, (2048, 20)), torch.randint(0, 5000, (2048,)), torch.ones(2048).bernoulli(0.3)
for step in range(12):
    scores = net(torch.cat([users(seen), items(item)], 1))[:, 0]
    loss = nn.functional.binary_cross_entropy_with_logits(scores, clicked)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
