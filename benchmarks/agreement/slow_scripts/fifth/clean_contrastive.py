"""Two views of a batch are pulled together, all others pushed apart."""
import torch
from torch import nn

encoder = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 128),
)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9, fused=True)
views, partner = torch.randn(128, 3, 48, 48), torch.arange(128).roll(64)
for step in range(12):
    features = nn.functional.normalize(encoder(views), dim=1)
    similarity = (features @ features.t() / 0.1).fill_diagonal_(-1e4)
    loss = nn.functional.cross_entropy(similarity, partner)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
