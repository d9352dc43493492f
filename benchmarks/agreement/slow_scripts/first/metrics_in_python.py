import torch
from torch import nn


def f1(predicted, expected, classes):
    scores = []
    for c in range(classes):
        tp = sum(1 for p, e in zip(predicted, expected) if p == c and e == c)  # slow: NPK801
        fp = sum(1 for p, e in zip(predicted, expected) if p == c and e != c)  # slow: NPK801
        fn = sum(1 for p, e in zip(predicted, expected) if p != c and e == c)  # slow: NPK801
        scores.append(2 * tp / max(1, 2 * tp + fp + fn))
    return sum(scores) / classes


model = nn.Sequential(nn.Embedding(1000, 64), nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 12))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
for step in range(14):
    ids, y = torch.randint(0, 1000, (512, 16)), torch.randint(0, 12, (512,))
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    score = f1(logits.argmax(-1).tolist(), y.tolist(), 12)
