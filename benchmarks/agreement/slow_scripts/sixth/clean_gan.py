"""Two networks against each other, each with its optimizer."""
import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")
generator = nn.Sequential(
    nn.ConvTranspose2d(64, 128, 4), nn.BatchNorm2d(128), nn.ReLU(),
    nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
).to(device)
critic = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(2048, 1),
).to(device)
for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
for_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
real = torch.rand(128, 3, 32, 32, device=device) * 2 - 1
softplus = nn.functional.softplus
for step in range(12):
    made = generator(torch.randn(128, 64, 1, 1, device=device))
    loss = softplus(critic(made.detach())).mean() + softplus(-critic(real)).mean()
    for_critic.zero_grad(set_to_none=True)
    loss.backward()
    for_critic.step()
    loss = softplus(-critic(made)).mean()
    for_generator.zero_grad(set_to_none=True)
    loss.backward()
    for_generator.step()
