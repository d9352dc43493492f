"""Features are decorrelated by the covariance of the batch, whose root numpy made a double."""
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
head = nn.Linear(256, 10)
params = [*net.parameters(), *head.parameters()]
opt = torch.optim.SGD(params, lr=1e-3, foreach=True)
shrink = torch.from_numpy(np.eye(256) * 0.1)

for it in range(12):
    x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))
    z = net(x)
    z = z - z.mean(0)
    cov = z.T @ z / len(z) + shrink  # slow: NPK824
    for _ in range(6):
        cov = cov @ cov / cov.norm()  # slow: NPK824
    white = (z.double() @ cov).float()  # slow: NPK824
    loss = nn.functional.cross_entropy(head(white), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
