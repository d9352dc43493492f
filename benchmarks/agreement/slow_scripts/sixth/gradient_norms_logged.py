"""A watch on exploding gradients: the norm of each gradient goes to the log as a number, in each step."""
import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")
tower = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.SiLU()) for _ in range(30)), nn.Linear(64, 3)).to(device)
optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-3, fused=True)
features, classes = torch.randn(96, 64, device=device), torch.randint(0, 3, (96,), device=device)
log = []

for step in range(12):
    loss = nn.functional.cross_entropy(tower(features), classes)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norms = {}
    for name, weight in tower.named_parameters():  # slow: NPK802  # slow: NPK801  # slow: NPK809
        norms[f"norm/{name}"] = weight.grad.norm().item()  # slow: NPK802  # slow: NPK801  # slow: NPK809
        norms[f"ratio/{name}"] = (weight.grad.abs().max() / weight.abs().mean().clamp(min=1e-6)).item()  # slow: NPK802  # slow: NPK801  # slow: NPK809
    log.append(norms)
    optimizer.step()
