import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.d_model = d_model

    def forward(self, x):
        length = x.size(1)
        pe = torch.zeros(length, self.d_model)  # slow: NPK819
        position = torch.arange(0, length).unsqueeze(1).float()  # slow: NPK819
        div = torch.exp(torch.arange(0, self.d_model, 2).float() * -(math.log(10000.0) / self.d_model))  # slow: NPK819
        pe[:, 0::2] = torch.sin(position * div)  # slow: NPK819
        pe[:, 1::2] = torch.cos(position * div)  # slow: NPK819
        return x + pe


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 256)
        self.position = PositionalEncoding(256)
        self.out = nn.Linear(256, 9)

    def forward(self, ids):
        return self.out(self.position(self.embed(ids)))


tagger = Tagger()
optimizer = torch.optim.SGD(tagger.parameters(), lr=0.01)
for step in range(14):
    ids, tags = torch.randint(0, 300, (2, 4096)), torch.randint(0, 9, (2, 4096))
    loss = nn.functional.cross_entropy(tagger(ids).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
