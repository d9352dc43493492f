"""A student learns from a teacher that does not learn; the loss is shown now and then."""
import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")


def network(width, depth):
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    return nn.Sequential(nn.Linear(256, width), *layers, nn.Linear(width, 200))


teacher, student = network(1024, 3).to(device).eval().requires_grad_(False), network(512, 2).to(device)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
total = torch.zeros((), device=device)
for step in range(12):
    x = torch.randn(512, 256, device=device)
    with torch.no_grad():
        wanted = (teacher(x) / 2).softmax(-1)
    loss = nn.functional.cross_entropy(student(x) / 2, wanted)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    total += loss.detach()
    if step % 10 == 9:
        print(step, total.item() / 10)
        total.zero_()
