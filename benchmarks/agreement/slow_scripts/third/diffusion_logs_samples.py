"""A small unconditional diffusion model that shows what it has learned."""
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

logging_dir = tempfile.mkdtemp()
betas = torch.linspace(1e-4, 0.02, 1000)
alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)


class UNet(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.time = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.SiLU(), torch.nn.Linear(width, width))
        self.inp, self.mid = torch.nn.Conv2d(3, width, 3, padding=1), torch.nn.Conv2d(width, width, 3, padding=1)
        self.norm, self.out = torch.nn.GroupNorm(8, width), torch.nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, sample, timestep):
        h = self.inp(sample) + self.time(timestep[:, None].float() / 1000)[:, :, None, None]
        return self.out(F.silu(self.norm(self.mid(h))))


def log_validation(images, step):
    images = (images.clamp(-1, 1) * 127.5 + 127.5).to("cpu", torch.uint8).permute(0, 2, 3, 1).numpy()
    grid = np.concatenate([np.concatenate(row, 1) for row in np.split(images, 4)], 0)
    grid = np.kron(grid, np.ones((6, 6, 1), dtype=np.uint8))
    Image.fromarray(grid).save(os.path.join(logging_dir, f"step-{step:06d}.png"))  # slow: NPK808


def main():
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    clean_images = torch.rand(16, 3, 64, 64) * 2 - 1
    global_step = 0
    for epoch in range(2):
        for _ in range(7):
            noise = torch.randn_like(clean_images)
            timesteps = torch.randint(0, 1000, (16,))
            a = alphas_cumprod[timesteps][:, None, None, None]
            noisy_images = a.sqrt() * clean_images + (1 - a).sqrt() * noise
            noise_pred = model(noisy_images, timesteps)
            loss = F.mse_loss(noise_pred, noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            global_step += 1
            log_validation(noisy_images - noise_pred.detach(), global_step)


if __name__ == "__main__":
    main()
