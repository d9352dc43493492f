import gc

import torch

records = [{"id": n, "text": [str(n)]} for n in range(150_000)]


def train(model, optimizer, steps):
    for step in range(steps):
        rows = records[step * 8 : step * 8 + 8]
        x = torch.randn(len(rows) * 16, 256)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss
        gc.collect()  # slow: NPK804


model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
train(model, torch.optim.AdamW(model.parameters(), fused=True), 14)
