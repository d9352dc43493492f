"""Two towers trained against each other under bfloat16 autocast, with an average of the weights."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(11)
device = torch.device("cuda")


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.project = nn.Linear(8 * 7 * 7, 16)
        self.text = nn.EmbeddingBag(50, 16)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pictures, tokens):
        image = F.normalize(self.project(self.image(pictures)), dim=-1)
        text = F.normalize(self.text(tokens), dim=-1)
        return self.scale.exp() * image @ text.t()


model = Towers().to(device)
average = copy.deepcopy(model)
groups = [{"params": [each for each in model.parameters() if each.ndim > 1]},
          {"params": [each for each in model.parameters() if each.ndim < 2], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=5e-3, weight_decay=0.2)
for step in range(8):
    pictures, tokens = torch.randn(16, 3, 16, 16).to(device), torch.randint(0, 50, (16, 5)).to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(pictures, tokens)
        labels = torch.arange(16, device=device)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)
    print(f"step {step}: contrastive loss {loss.item():.4f}")
average.eval()
with torch.no_grad():
    average(torch.randn(4, 3, 16, 16).to(device), torch.randint(0, 50, (4, 5)).to(device))
