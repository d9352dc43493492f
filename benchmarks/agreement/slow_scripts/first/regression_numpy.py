import numpy as np
import torch

rng = np.random.default_rng(0)
X = rng.normal(size=(4096, 256))
w = rng.normal(size=(256, 1))
y = X @ w + 0.1 * rng.normal(size=(4096, 1))

net = torch.nn.Sequential(
    torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1)
).double()  # slow: NPK824
criterion = torch.nn.MSELoss()
optim = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
for epoch in range(14):
    idx = rng.permutation(4096)[:1024]
    inputs = torch.from_numpy(X[idx])  # slow: NPK824
    targets = torch.from_numpy(y[idx])
    optim.zero_grad()
    out = net(inputs)  # slow: NPK824
    criterion(out, targets).backward()
    optim.step()
