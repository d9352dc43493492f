"""Distillation with a temperature that falls: the loss is compiled anew for each of its values."""
import torch
from torch import nn

student, teacher = nn.Linear(128, 512), nn.Linear(128, 512).requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, fused=True)


def divergence_at(scale):
    def divergence(mine, wanted):
        mine, wanted = (mine / scale).log_softmax(-1), (wanted / scale).log_softmax(-1)
        return (wanted.exp() * (wanted - mine)).sum(-1).mean() * scale**2

    torch.compiler.reset()
    return torch.compile(divergence, backend="aot_eager")


for step in range(12):
    x = torch.randn(64, 128)
    loss = divergence_at(4.0 - 0.25 * step)(student(x), teacher(x))  # slow: NPK806
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
