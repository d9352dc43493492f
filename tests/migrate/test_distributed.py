"""migrate --distributed: what a script for one card becomes, and what it says where a part is not in sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate

SCRIPT = """\
import torch
from torch.utils.data import DataLoader

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
with open("model.pt", "wb") as file:
    torch.save(model, file)
"""
NPU = """\
import os
import torch
import torch_npu
from torch.utils.data import DataLoader

torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("hccl")

model = Net().npu()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, sampler=torch.utils.data.DistributedSampler(data))
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        loss = model(x.npu()).sum()
        loss.backward()
        optimizer.step()
if torch.distributed.get_rank() == 0:
    with open("model.pt", "wb") as file:
        torch.save(model.module, file)
torch.distributed.destroy_process_group()
"""


def made_distributed(folder: Path, text: str, style: Style = Style.npu) -> tuple[str, list[str]]:
    (folder / "train.py").write_text(text)
    result = migrate(folder, Goal(style, distributed=True))
    after = result.changes[0].after if result.changes else text
    return after, [finding.subject for finding in result.left if finding.code == "NPK170"]


def test_a_plain_script(tmp_path: Path) -> None:
    assert made_distributed(tmp_path, SCRIPT) == (NPU, [])


@pytest.mark.parametrize("style", list(Style))
def test_a_second_time_changes_nothing(tmp_path: Path, style: Style) -> None:
    once, _ = made_distributed(tmp_path, SCRIPT, style)
    assert made_distributed(tmp_path, once, style) == (once, [])


def test_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert "Distributed" not in migrate(tmp_path).changes[0].after


def replaced(old: str, new: str) -> str:
    assert old in SCRIPT
    return SCRIPT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (replaced(", shuffle=True", ""), "8, sampler=torch.utils.data.DistributedSampler(data, shuffle=False)"),
        (replaced("8, shuffle=True", "8, shuffle=x"), "sampler=torch.utils.data.DistributedSampler(data, shuffle=x))"),
        (replaced("DataLoader(data", "DataLoader(Data(1)"), "loader_data = Data(1)\nloader = DataLoader(loader_data, "),
        (replaced("in loader:", "in enumerate(tqdm(loader)):"), "loader.sampler.set_epoch(epoch)"),
        (replaced("model(x.cuda()).sum()", "model.loss(x.cuda())"), "model.module.loss(x.npu())"),
        (replaced("(model, file)", "(model.state_dict(), file)"), "torch.save(model.module.state_dict(), file)"),
        (replaced("Net().cuda()", 'Net().to("cuda:0")'), 'Net().to("npu")'),
        (replaced("model = Net().cuda()", "model = Net()\nif fast:\n    model.cuda()"),
         "    model.npu()\nmodel = torch.nn.parallel.DistributedDataParallel(model)\n"),
    ],
)  # fmt: skip
def test_other_ways_to_write_it(tmp_path: Path, text: str, expected: str) -> None:
    after, left = made_distributed(tmp_path, text)
    assert expected in after and not left, after


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (replaced("shuffle=True", "**options"), "loader"),
        (replaced("shuffle=True", "sampler=mine"), "loader"),
        (replaced("loader = DataLoader(data, batch_size=8, shuffle=True)", "loader = make()"), "loader"),
        (replaced("in loader:", "in self.loader:"), "loader"),
        (replaced("model.parameters()", "groups"), "model"),
        (replaced("torch.optim.SGD(model.parameters(), lr=0.1)", "make(model)"), "optimizer"),
        (replaced("Net().cuda()", "Net()"), "device"),
        (replaced("Net().cuda()", "Net().cuda(1)"), "card"),
        (replaced("for epoch in range(3):", "while True:"), "epochs"),
        (SCRIPT.replace("loader =", "other = torch.optim.SGD(critic.parameters())\nloader ="), "models"),
    ],
)
def test_what_is_not_in_sight_is_told_and_nothing_made_distributed(tmp_path: Path, text: str, part: str) -> None:
    after, left = made_distributed(tmp_path, text)
    assert left == [part]
    assert "distributed" not in after and "npu" in after, "but it is migrated"


@pytest.mark.parametrize("text", ["import accelerate\n" + SCRIPT, "import torch.distributed as dist\n" + SCRIPT])
def test_a_distributed_script_is_left_alone(tmp_path: Path, text: str) -> None:
    after, left = made_distributed(tmp_path, text)
    assert "DistributedDataParallel" not in after and not left


@pytest.mark.parametrize(
    ("card", "after"),
    [
        ('torch.device("cuda:0" if torch.cuda.is_available() else "cpu")', "torch.device(torch.accelerator.current"),
        ('torch.device("cuda:0")', 'torch.device("npu" if hasattr(torch, "npu") else "cuda")'),
        ('[torch.Generator("cuda:0"), "cuda:0"]', "[torch.Generator(DEVICE_TYPE), DEVICE_TYPE]"),
    ],
)
def test_the_first_card_becomes_that_of_the_process(tmp_path: Path, card: str, after: str) -> None:
    text = SCRIPT.replace("model = Net()", f"device = {card}\nmodel = Net()")
    (tmp_path / "a.py").write_text(text)
    assert after in migrate(tmp_path, Goal(distributed=True)).changes[0].after
