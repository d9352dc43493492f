import random

import torch
from torch import nn


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, nodes, edges):
        h = self.a(nodes)
        h = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]).relu()
        h = self.b(h)
        h = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]).relu()
        return self.out(h.mean(0))


def random_graph():
    n = random.randint(5, 30)
    return torch.randn(n, 16), torch.randint(0, n, (2, 3 * n)), random.randint(0, 1)


graphs = [random_graph() for _ in range(64 * 14)]
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
for start in range(0, len(graphs), 64):
    optimizer.zero_grad()
    outputs, targets = [], []
    for nodes, edges, label in graphs[start : start + 64]:  # slow: NPK809
        outputs.append(model(nodes, edges))  # slow: NPK809
        targets.append(label)
    loss = nn.functional.cross_entropy(torch.stack(outputs), torch.tensor(targets))
    loss.backward()
    optimizer.step()
