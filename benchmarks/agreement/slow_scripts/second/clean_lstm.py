import torch
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self, vocab=1000, width=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, x, hidden=None):
        y, hidden = self.lstm(self.embed(x), hidden)
        return self.out(y), hidden


model = LanguageModel()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
corpus = torch.randint(0, 1000, (32, 14 * 64 + 1))
for start in range(0, 14 * 64, 64):
    x, y = corpus[:, start : start + 64], corpus[:, start + 1 : start + 65]
    logits, _ = model(x)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
