"""A vision transformer: patches, SDPA, warm-up and cosine of the rate, clipped gradients."""
import math

import torch
from torch import nn
from torch.nn import functional as F

device = torch.accelerator.current_accelerator() or torch.device("cpu")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(self.between(x))


class ViT(nn.Module):
    def __init__(self, width=192, depth=4):
        super().__init__()
        self.patches, self.place = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.blocks, self.head = nn.Sequential(*(Block(width, 3) for _ in range(depth))), nn.Linear(width, 100)

    def forward(self, pictures):
        return self.head(self.blocks(self.patches(pictures).flatten(2).transpose(1, 2) + self.place).mean(1))


vit = ViT().to(device)
optimizer = torch.optim.AdamW(vit.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / 4) * 0.5 * (1 + math.cos(n / 12)))
pictures, labels = torch.rand(48, 3, 64, 64, device=device), torch.randint(0, 100, (48,), device=device)
for step in range(12):
    loss = F.cross_entropy(vit(pictures), labels, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(vit.parameters(), 1.0)
    optimizer.step()
    schedule.step()
