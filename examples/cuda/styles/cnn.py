"""A convolutional network in float16 with gradient scaling; prints a loss for each epoch."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout, self.fc = nn.Dropout2d(0.25), nn.Linear(16 * 8 * 8, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc(self.dropout(F.max_pool2d(x, 2)).flatten(1))


pictures, labels = torch.rand(128, 1, 20, 20), torch.randint(0, 10, (128,))
loader = DataLoader(TensorDataset(pictures, labels), batch_size=32, shuffle=True, pin_memory=True)
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = GradScaler()
for epoch in range(2):
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.to("cuda:0")
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(f"epoch {epoch} loss {loss.item():.5f}")
torch.cuda.synchronize()
