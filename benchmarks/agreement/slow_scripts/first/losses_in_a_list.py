"""CIFAR-like classification; the curve is plotted at the end."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc = nn.Linear(64 * 8 * 8, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
history = []
for i in range(14):
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    opt.zero_grad()
    loss = F.cross_entropy(net(images), labels)
    loss.backward()
    opt.step()
    history.append(loss)  # slow: NPK842
print("mean", torch.stack(history).mean().item())
