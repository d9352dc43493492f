import json
import os
import tempfile

import torch
from torch import nn

log = open(os.path.join(tempfile.mkdtemp(), "predictions.jsonl"), "w")
model = nn.Sequential(nn.Linear(300, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def write_rows(rows, step):
    for n, row in enumerate(rows):
        log.write(json.dumps({"step": step, "row": n, "logits": row}) + "\n")  # slow: NPK808
        log.flush()  # slow: NPK808
    os.fsync(log.fileno())  # slow: NPK808


for step in range(14):
    x, y = torch.randn(128, 300), torch.randint(0, 64, (128,))
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    write_rows(logits.tolist(), step)
