import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv = nn.Conv1d(d, d, 3, padding=1)
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Linear(d, d)

    def forward(self, x):
        # batch, time, channels
        y = x.transpose(1, 2).contiguous().transpose(1, 2).contiguous().transpose(1, 2).contiguous().clone()  # slow: NPK818
        y = y.clone().transpose(1, 2).contiguous().transpose(1, 2).contiguous()  # slow: NPK818
        y = self.conv(y).transpose(1, 2)
        return x + self.ff(self.norm(y))


def main():
    model = nn.Sequential(*[Block(128) for _ in range(4)], nn.Linear(128, 50))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    data = torch.randn(16, 16, 256, 128)
    target = torch.randint(0, 50, (16, 16, 256))
    for step in range(14):
        out = model(data[step])
        loss = nn.functional.cross_entropy(out.flatten(0, 1), target[step].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
