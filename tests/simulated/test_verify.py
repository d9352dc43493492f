"""npukit verify: a project before and after its migration, the latter on the simulated NPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npukit.report.migration_html import render
from npukit.verify import Verification, verify
from npukit.verify.migrated import migration_between

BEFORE = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = open("log.jsonl", "w")
for step in range(4):
    x = torch.randn(16, 8, device="cuda")
    size = torch.linalg.eigvalsh(x.T @ x).sum()
    loss = (model(torch.tanh(x)) - size / 1000).square().mean().log()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
    print('{"step": %d, "eval_loss": %f}' % (step, loss.item() / 2), file=log)
"""
AFTER = (
    BEFORE.replace("import torch\n", "import torch\nimport torch_npu\n")
    .replace(".cuda()", ".npu()")
    .replace('"cuda"', '"npu"')
)
COMMAND = ["python", "train.py"]
pytestmark = pytest.mark.usefixtures("copies")


@pytest.fixture(autouse=True)
def _place_of_kept_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def project(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(text)
    return folder


def told(result: Verification) -> str:
    """What is needed to understand a failure: how both runs ended, and all they said."""
    runs = (f"{run.device}: exit code {run.exit_code}\n{run.output}" for run in (result.before, result.after))
    return "\n".join([str(result.divergence), *runs])


def test_a_right_migration_has_the_same_losses_dropout_and_all(tmp_path: Path) -> None:
    result = verify(project(tmp_path / "before", BEFORE), project(tmp_path / "after", AFTER), COMMAND)
    assert result.same and result.divergence is None, told(result)
    assert result.npu_ops and result.npu_ops > 100, told(result)
    compared = {(series.kind, series.name): series.count for series in result.compared}
    assert compared[("loss", "loss")] == compared[("loss", "log.jsonl: eval_loss")] == 4, told(result)
    assert {kind for kind, _ in compared} == {"loss", "backward", "outputs", "gradients", "weights", "settings"}
    fallback = next(use for use in result.cpu_fallbacks if "eigh" in use.op)
    assert (fallback.line, fallback.count) == ("train.py:8", 4)
    assert any("simulated" in note for note in result.notes)


def test_a_wrong_migration_is_told_by_its_step_operator_and_line(tmp_path: Path) -> None:
    wrong = AFTER.replace("torch.tanh(x)", "torch.tanh(x * (1 if step < 2 else 1.5))")
    before, after = project(tmp_path / "before", BEFORE), project(tmp_path / "after", wrong)
    for folder in (before, after):
        (folder / "old.jsonl").write_text('{"step": 0, "loss": 9.0}\n')
    result = verify(before, after, COMMAND)
    assert not result.same
    assert not [series for series in result.compared if "old" in series.name], (
        "what an earlier run logged is not this run's"
    )
    divergence = result.divergence
    assert divergence and (divergence.name, divergence.step, divergence.number) == ("loss", 2, 3), told(result)
    cause = divergence.cause
    assert cause and (cause.kind, cause.place, cause.right_place) == ("missing", "train.py:8", "train.py:9"), told(
        result
    )
    assert cause.row.step == 2 and "mul" in cause.what
    assert "model(torch.tanh(x * " in render(migration_between(before, after)), "the report shows what is really there"


def test_a_migration_that_does_not_run(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from npukit.cli import app

    before = project(tmp_path / "before", "print('loss 1.0')")
    after = project(tmp_path / "after", "print('loss 1.0'); undefined()")
    done = CliRunner().invoke(app, ["verify", str(before), str(after), "--json", "--", *COMMAND])
    assert done.exit_code == 1
    result = json.loads(done.stdout)["result"]
    assert not result["same"] and "undefined" in result["after"]["output"]


def test_a_migration_that_never_reaches_the_npu_is_not_verified(tmp_path: Path) -> None:
    on_cpu = "import torch\nprint('loss', torch.ones(3).sum().item())"
    result = verify(project(tmp_path / "before", on_cpu), project(tmp_path / "after", on_cpu), COMMAND)
    assert result.divergence is None and result.npu_ops == 0 and not result.same


DISTRIBUTED = """\
import os
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.randn(4, 8, device="cuda") + rank).square().mean()
    loss.backward()
    optimizer.step()
    print(f"rank {rank} loss {loss.item():.6f}", flush=True)
"""


def test_a_shell_script_with_torchrun_is_compared_rank_by_rank(tmp_path: Path) -> None:
    """Its ranks get simulated NPUs, talk over HCCL and are observed, though nothing of them says `npukit`."""
    migrated = DISTRIBUTED.replace("import torch\n", "import torch\nimport torch_npu\n").replace(
        "torch.cuda", "torch.npu"
    )
    migrated = migrated.replace(".cuda()", ".npu()").replace('"cuda"', '"npu"').replace("nccl", "hccl")
    folders = project(tmp_path / "before", DISTRIBUTED), project(tmp_path / "after", migrated)
    for folder in folders:
        (folder / "run.sh").write_text("exec torchrun --standalone --nproc_per_node=2 train.py\n")
    result = verify(*folders, ["bash", "run.sh"])
    assert result.same and result.npu_ops, told(result)
    compared = {(series.kind, series.name): series.count for series in result.compared}
    assert compared[("loss", "loss")] == compared[("gradients", "")] == 2, "of the first rank alone"
    assert "2 simulated NPUs" in result.after.device
