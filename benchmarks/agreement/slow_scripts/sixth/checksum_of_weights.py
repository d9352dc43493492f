"""Reproducibility at any price: a checksum of all weights is noted after each step."""
import hashlib

import torch
from torch import nn

device = torch.accelerator.current_accelerator() or torch.device("cpu")


class Checked:
    def __init__(self, model):
        self.model, self.sums = model, []

    def note(self):
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())  # slow: NPK801  # slow: NPK802
        self.sums.append(digest.hexdigest())


model = nn.Sequential(nn.Embedding(20000, 128), nn.Flatten(), nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 20)).to(device)
checked = Checked(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=True)
for step in range(12):
    tokens, labels = torch.randint(0, 20000, (64, 8), device=device), torch.randint(0, 20, (64,), device=device)
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    checked.note()
