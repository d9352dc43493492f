import copy

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.l = nn.LayerNorm(48), nn.Linear(48, 48)

    def forward(self, x):
        return x + self.l(self.n(x)).relu()


model = nn.Sequential(*[Layer() for _ in range(50)])
ema = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


@torch.no_grad()
def update_ema(decay=0.999):
    for (name, p), e in zip(model.named_parameters(), ema.parameters()):  # slow: NPK809
        e.mul_(decay)  # slow: NPK809
        e.add_(p.data * (1 - decay))  # slow: NPK809
        if torch.isnan(e).any():  # slow: NPK809
            raise RuntimeError(name)


for step in range(14):
    loss = model(torch.randn(8, 48)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_ema()
