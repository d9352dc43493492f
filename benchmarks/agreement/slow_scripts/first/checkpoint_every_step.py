import os
import tempfile

import torch
from torch import nn

out_dir = tempfile.mkdtemp()
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4)
head = nn.Linear(256, 256)
params = list(model.parameters()) + list(head.parameters())
optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True)
best = float("inf")


def train_one(batch):
    optimizer.zero_grad(set_to_none=True)
    loss = (head(model(batch)) - batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


for it in range(14):
    loss = train_one(torch.randn(4, 64, 256))
    state = {"model": model.state_dict(), "head": head.state_dict(), "opt": optimizer.state_dict(), "it": it}
    torch.save(state, os.path.join(out_dir, "last.pt"))  # slow: NPK808
