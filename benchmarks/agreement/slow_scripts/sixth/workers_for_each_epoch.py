"""Few shots: an epoch has two batches, and each epoch starts its loader's workers again."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    shots = TensorDataset(torch.randn(32, 64), torch.randint(0, 5, (32,)))
    loader = DataLoader(shots, batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 5)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    for epoch in range(8):
        for x, y in loader:  # slow: NPK803
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
