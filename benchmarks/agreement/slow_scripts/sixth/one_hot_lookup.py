"""Word vectors looked up as a product with one-hot rows, as a textbook writes it."""
import torch
from torch import nn
from torch.nn import functional as F

device = torch.accelerator.current_accelerator() or torch.device("cpu")


class Bag(nn.Module):
    def __init__(self, words, width, classes):
        super().__init__()
        self.words = words
        self.table, self.out = nn.Linear(words, width, bias=False), nn.Linear(width, classes)

    def forward(self, tokens):
        rows = F.one_hot(tokens, self.words).float()  # slow: NPK814
        return self.out(self.table(rows).mean(1))


bag = Bag(8000, 16, 4).to(device)
optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.05, foreach=True)
for step in range(12):
    tokens, topics = torch.randint(0, 8000, (32, 40), device=device), torch.randint(0, 4, (32,), device=device)
    loss = F.cross_entropy(bag(tokens), topics)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
