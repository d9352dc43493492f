import re

import torch
from torch.utils.data import DataLoader

texts = ["The quick brown fox, number %d, jumps over the lazy dog; again and again! " % n * 20 for n in range(32 * 14)]


def tokenize(text):
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    ids = []
    for word in words:
        h = 0
        for ch in word:
            h = (h * 31 + ord(ch)) % 4999
        ids.append(h + 1)
    return ids


def collate(rows):
    ids = [tokenize(row)[:256] for row in rows]
    return torch.tensor([row + [0] * (256 - len(row)) for row in ids])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.EmbeddingBag(5000, 64)
        self.out = torch.nn.Linear(64, 2)

    def forward(self, x):
        return self.out(self.embed(x))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
dataloader = DataLoader(texts, batch_size=32, collate_fn=collate)
for i, batch in enumerate(dataloader):  # slow: NPK803
    loss = model(batch).logsumexp(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
