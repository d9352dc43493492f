import argparse

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        signal = np.sin(np.arange(20000) * (i % 7 + 1) / 1000.0) + np.random.randn(20000)
        spectrum = np.abs(np.fft.rfft(signal))[:1024]
        return torch.tensor(spectrum, dtype=torch.float32), i % 7


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()
loader = DataLoader(Spectra(64 * 14), batch_size=args.batch_size, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.ReLU(), torch.nn.Linear(512, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for epoch in range(1):
    for batch, label in loader:  # slow: NPK803
        loss = torch.nn.functional.cross_entropy(model(batch), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
