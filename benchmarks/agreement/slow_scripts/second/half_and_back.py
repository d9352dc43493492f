import torch
from torch import nn


class CheckedLinear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        x = x.to(torch.bfloat16).float().to(torch.float16).float()  # slow: NPK814
        return self.inner(x).to(torch.bfloat16).float()  # slow: NPK814


model = nn.Sequential(*[CheckedLinear(64) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    x = torch.randn(32768, 64)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
