import torch
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
        self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decode(z), mu, logvar


def train_epoch(model, optimizer):
    model.train()
    train_loss = 0
    for _ in range(14):
        x = torch.rand(128, 784)
        recon, mu, logvar = model(x)
        bce = nn.functional.binary_cross_entropy_with_logits(recon, x, reduction="sum")
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
        loss = bce + kld
        optimizer.zero_grad()
        loss.backward()
        train_loss += loss  # slow: NPK842
        optimizer.step()
    return train_loss


vae = VAE()
print(train_epoch(vae, torch.optim.Adam(vae.parameters(), fused=True)))
