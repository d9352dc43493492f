"""migrate --distributed: two cards train to the weights that one has with batches twice as large."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = """\
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.body(x)

    def penalty(self):
        return self.body.weight.square().mean()


def train(model, loader, optimizer, device):
    model.train()
    for x, y in loader:
        loss = (model(x.to(device)) - y.to(device)).square().mean() + 0.1 * model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(batch_size):
    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=batch_size)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        train(model, loader, optimizer, device)
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]))
"""


def run(*command: str, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def test_two_cards_train_as_one_does(tmp_path: Path) -> None:
    one_card = tmp_path / "project"
    one_card.mkdir()
    (one_card / "train.py").write_text(SCRIPT)
    run(sys.executable, "train.py", "16", folder=one_card)
    npukit = [sys.executable, "-m", "npukit"]
    options = ["--distributed", "--output", str(tmp_path / "two")]
    run(*npukit, "migrate", str(one_card / "train.py"), *options, folder=tmp_path)
    run(*npukit, "launch", "--device", "sim", "--devices", "2", "train.py", "8", folder=tmp_path / "two")
    expected = torch.load(one_card / "model.pt")
    got = torch.load(tmp_path / "two" / "model.pt", map_location="cpu")
    assert list(got) == list(expected), "saved as one card saves it"
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight)
