"""Classify small pictures of digits with a convolutional network: a script as people write them for one GPU.

It says "cuda" in every way that scripts do, and nothing in it knows of NPUs:
    npukit run --auto --device sim examples/cuda/mnist.py
The pictures are made up here, so that nothing is downloaded.
"""
# mypy: ignore-errors

import argparse
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0"

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--save", default="")
args = parser.parse_args()

assert torch.cuda.is_available(), "this script needs a GPU"
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
device = torch.device(args.device)


def digits(count: int) -> TensorDataset:
    """Noise with a bright bar whose place is the digit."""
    labels = torch.randint(0, 10, (count,))
    pictures = torch.rand(count, 1, 20, 20) * 0.5
    for picture, label in zip(pictures, labels, strict=True):
        picture[0, 2 * label : 2 * label + 2] += 1.0
    return TensorDataset(pictures, labels)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc = nn.Linear(16 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc(F.max_pool2d(x, 2).flatten(1))


train = DataLoader(digits(256), batch_size=32, shuffle=True, pin_memory=device.type == "cuda")
test = DataLoader(digits(64), batch_size=64)
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)

for epoch in range(args.epochs):
    model.train()
    for pictures, labels in train:
        pictures, labels = pictures.cuda(non_blocking=True), labels.to("cuda:0")
        optimizer.zero_grad(set_to_none=True)
        with torch.amp.autocast("cuda", dtype=torch.float16, enabled=args.amp):
            loss = F.cross_entropy(model(pictures), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(f"epoch {epoch} loss {loss.item():.5f}")

model.eval()
correct = torch.zeros(1).type("torch.cuda.FloatTensor")
with torch.no_grad():
    for pictures, labels in test:
        found = model(pictures.to(device)).argmax(1)
        if found.device.type == "cuda" and found.is_cuda:
            correct += (found == labels.to(found.device)).sum()
torch.cuda.synchronize()
print(f"accuracy {correct.item() / 64:.3f}")
if args.save:
    torch.save(model.state_dict(), args.save)
    model.load_state_dict(torch.load(args.save, map_location="cuda:0"))
    print("saved", args.save)
