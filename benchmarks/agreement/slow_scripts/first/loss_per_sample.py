import torch
import torch.nn as nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 20))

    def forward(self, x):
        return self.body(x)


def margin_loss(scores, labels, margin=1.0):
    total = 0.0
    for i in range(scores.shape[0]):  # slow: NPK809
        row = scores[i]  # slow: NPK809
        right = row[labels[i]]  # slow: NPK809
        others = torch.clamp(row - right + margin, min=0)  # slow: NPK809
        total = total + others.sum() - margin  # slow: NPK809
    return total / scores.shape[0]


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(14):
    x = torch.randn(256, 128)
    y = torch.randint(0, 20, (256,))
    loss = margin_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
