import random

import torch
from torch import nn

random.seed(1)
sentences = [torch.randint(1, 500, (random.randint(20, 400),)) for _ in range(200)]


def batches(size):
    for start in range(0, len(sentences), size):
        rows = sentences[start : start + size]
        yield nn.utils.rnn.pad_sequence(rows, batch_first=True)  # slow: NPK815


model = nn.Sequential(nn.Embedding(500, 128), nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), nn.Linear(128, 500))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for batch in batches(4):
    out = model(batch[:, :-1])  # slow: NPK815
    loss = nn.functional.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
