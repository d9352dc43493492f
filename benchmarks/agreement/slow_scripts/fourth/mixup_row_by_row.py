"""Every picture is mixed with a partner, one after the other."""
import random

import torch
from torch import nn

random.seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, foreach=True)
images, labels = torch.rand(2048, 3, 16, 16), torch.randint(0, 10, (2048,))


def mixup(x, y):
    mixed, targets = torch.empty_like(x), torch.zeros(len(x), 10)
    for i in range(len(x)):  # slow: NPK809
        lam, j = random.betavariate(0.4, 0.4), random.randrange(len(x))
        mixed[i] = lam * x[i] + (1 - lam) * x[j]  # slow: NPK809
        targets[i, y[i]] += lam  # slow: NPK809
        targets[i, y[j]] += 1 - lam  # slow: NPK809
    return mixed, targets


for it in range(12):
    pick = torch.randint(0, 2048, (256,))
    x, t = mixup(images[pick], labels[pick])
    loss = nn.functional.cross_entropy(net(x), t)
    opt.zero_grad()
    loss.backward()
    opt.step()
