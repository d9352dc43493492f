"""A small GAN with two optimizers; logs nested JSON and nothing else."""
import json

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2)).cuda()
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).cuda()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
log = open("log.jsonl", "w")
for step in range(12):
    real = torch.cuda.FloatTensor(64, 2).normal_() * 0.5 + 1
    fake = generator(torch.randn(64, 8, device="cuda"))
    optimizer_d.zero_grad()
    loss_d = criterion(critic(real), torch.full((64, 1), 0.9, device="cuda"))
    loss_d = loss_d + criterion(critic(fake.detach()), torch.zeros(64, 1).cuda())
    loss_d.backward()
    optimizer_d.step()
    optimizer_g.zero_grad()
    loss_g = criterion(critic(fake), torch.ones(64, 1, device="cuda"))
    loss_g.backward()
    optimizer_g.step()
    log.write(json.dumps({"step": step, "train": {"d": {"loss": loss_d.item()}, "g": {"loss": loss_g.item()}}}) + "\n")
log.close()
