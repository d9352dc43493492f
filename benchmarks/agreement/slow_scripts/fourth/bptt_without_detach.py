"""A character model that hands its state from chunk to chunk, and its whole history with it."""
import torch
from torch import nn

torch.manual_seed(0)


class Chars(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(64, 64), nn.GRU(64, 128, batch_first=True), nn.Linear(128, 64)

    def forward(self, tokens, state):
        states, state = self.rnn(self.embed(tokens), state)
        return self.out(states), state


model = Chars()
weights = list(model.parameters())
# The steps of the profiler end with an optimizer's; this one changes nothing that is kept for the next chunk.
optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
text = torch.randint(0, 64, (32, 40 * 16 + 1))
state, total = None, 0.0
for chunk in range(16):
    x, y = text[:, chunk * 40 : chunk * 40 + 40], text[:, chunk * 40 + 1 : chunk * 40 + 41]
    logits, state = model(x, state)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    for weight in weights:
        weight.grad = None
    loss.backward(retain_graph=True)  # slow: NPK842
    optimizer.step()
    total += float(loss)
