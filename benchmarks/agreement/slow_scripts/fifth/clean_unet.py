"""Segmentation with a small U-Net."""
import torch
from torch import nn
from torch.nn import functional


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.middle, self.up = nn.Conv2d(64, 64, 3, padding=1), nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.out = nn.Conv2d(64, 5, 1)

    def forward(self, pictures):
        high = functional.relu(self.first(pictures))
        low = functional.relu(self.middle(functional.relu(self.down(high))))
        return self.out(torch.cat([high, self.up(low)], 1))


model = UNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
pictures, masks = torch.randn(8, 3, 96, 96), torch.randint(0, 5, (8, 96, 96))
for step in range(12):
    loss = functional.cross_entropy(model(pictures), masks)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
