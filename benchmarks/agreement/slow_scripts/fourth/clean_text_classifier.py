"""A transformer encoder over rows of one length."""
import torch
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(256, 5)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(1))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
tokens, labels = torch.randint(0, 1000, (16 * 12, 128)), torch.randint(0, 5, (16 * 12,))
for x, y in zip(tokens.split(16), labels.split(16)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
