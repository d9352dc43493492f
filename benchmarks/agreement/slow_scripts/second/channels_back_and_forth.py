import torch
import torch.nn as nn


class LayerNorm2d(nn.Module):
    """Normalises channels; images come as NCHW."""

    def __init__(self, c):
        super().__init__()
        self.n = nn.LayerNorm(c)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1).contiguous()  # slow: NPK818
        x = self.n(x)
        x = x.permute(0, 3, 1, 2).contiguous()  # slow: NPK818
        return x.clone()  # slow: NPK818


def block(c):
    return nn.Sequential(nn.Conv2d(c, c, 7, padding=3, groups=c), LayerNorm2d(c), nn.GELU(), LayerNorm2d(c))


net = nn.Sequential(nn.Conv2d(3, 48, 4, 4), *(block(48) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 100))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(16, 3, 128, 128), torch.randint(0, 100, (16,))
for i in range(14):
    opt.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
