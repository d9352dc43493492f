"""Each sample is a compressed file that is opened when it is asked for."""
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

root = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
for i in range(32):
    np.savez_compressed(root / f"{i}.npz", x=rng.standard_normal((128, 256)).astype("float32"), y=i % 4)


class Files(Dataset):
    def __len__(self):
        return 32 * 30

    def __getitem__(self, i):
        with np.load(root / f"{i % 32}.npz") as f:
            return f["x"], int(f["y"])


net = nn.Sequential(nn.Conv1d(128, 128, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 4))
opt = torch.optim.Adam(net.parameters(), fused=True)
loader = DataLoader(Files(), batch_size=32, shuffle=True)
for step, (x, y) in enumerate(loader):  # slow: NPK803
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 14:
        break
