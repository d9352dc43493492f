"""migrate --distributed: two cards train to the weights that one has with batches twice as large."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from tests.conftest import Npukit
from tests.forks import Forks

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


def test_two_cards_train_as_one_does(
    npukit: Npukit, forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_card = tmp_path / "project"
    one_card.mkdir()
    (one_card / "train.py").write_text(SCRIPT)
    with monkeypatch.context() as patch:
        patch.chdir(one_card)
        patch.setattr(sys, "argv", ["train.py", "16"])
        runpy.run_path("train.py", run_name="__main__")
    done = npukit("migrate", one_card / "train.py", "--distributed", "--output", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    forks.run("npukit", "run", "--device", "sim", "--devices", 2, "train.py", 8, cwd=tmp_path / "two")
    expected = torch.load(one_card / "model.pt")
    got = torch.load(tmp_path / "two" / "model.pt", map_location="cpu")
    assert list(got) == list(expected), "saved as one card saves it"
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight)
