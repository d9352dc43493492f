"""Stands in for what stable-diffusion's sampling uses of Lightning: a module that knows its device, and seeds."""

import torch


class LightningModule(torch.nn.Module):
    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
