"""Private training: the gradient of each sample is clipped on its own, after a backward pass of its own."""
import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")
net = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6)).to(device)
weights = list(net.parameters())
optimizer = torch.optim.SGD(weights, lr=0.1, foreach=True)


def private_gradients(rows, labels, bound=1.0):
    losses = nn.functional.cross_entropy(net(rows), labels, reduction="none")
    total = [torch.zeros_like(weight) for weight in weights]
    for loss in losses:  # slow: NPK809
        gradients = torch.autograd.grad(loss, weights, retain_graph=True)  # slow: NPK809
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()  # slow: NPK809
        factor = (bound / (norm + 1e-6)).clamp(max=1.0)  # slow: NPK809
        for sum_of, gradient in zip(total, gradients):  # slow: NPK809
            sum_of += gradient * factor  # slow: NPK809
    return [sum_of / len(rows) for sum_of in total]


for step in range(12):
    rows, labels = torch.randn(48, 40, device=device), torch.randint(0, 6, (48,), device=device)
    for weight, gradient in zip(weights, private_gradients(rows, labels)):
        weight.grad = gradient
    optimizer.step()
