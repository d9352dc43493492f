"""A variational autoencoder with command-line options; writes a CSV file."""
import argparse
import csv

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
use_cuda = not args.no_cuda and torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
torch.manual_seed(1)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(32, 24)
        self.mean, self.logvar = nn.Linear(24, 4), nn.Linear(24, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 32))

    def forward(self, x):
        hidden = F.relu(self.encoder(x))
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        noise = torch.randn_like(mean)
        return torch.sigmoid(self.decoder(mean + noise * torch.exp(0.5 * logvar))), mean, logvar


data = torch.rand(256, 32).bernoulli()
model = VAE().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
with open("history.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["step", "loss"])
    for step in range(args.steps):
        x = data[torch.randperm(256)[:32]].to(device, non_blocking=use_cuda)
        out, mean, logvar = model(x)
        kl = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
        loss = F.binary_cross_entropy(out, x, reduction="sum") + kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.writerow([step, f"{loss.item() / len(x):.3f}"])
