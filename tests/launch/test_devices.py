"""What a wanted device means on a machine, in a shell; and what environment it gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.launch import devices
from npukit.launch.devices import Wanted, choose
from npukit.launch.script import GIVEN
from npukit.machine import Machine

MakeMachine = Callable[..., Machine]
SHELL = {"NPUKIT_SIM_DEVICES": "4", "NPUKIT_SIM_CARD": "910B1"}


@pytest.fixture
def machine(tmp_path: Path) -> MakeMachine:
    """machine(npus=8, gpus=0, **environ)"""

    def make(npus: int = 0, gpus: int = 0, **environ: str) -> Machine:
        (tmp_path / "dev").mkdir(exist_ok=True)
        for name in [*(f"davinci{number}" for number in range(npus)), *(f"nvidia{number}" for number in range(gpus))]:
            (tmp_path / "dev" / name).touch()
        return Machine(root=tmp_path, environ=environ)

    return make


@pytest.fixture
def torch_counts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda count: monkeypatch.setattr(devices, "count_gpus", lambda machine: count)


def test_auto_is_an_npu_else_cuda_else_the_cpu(machine: MakeMachine, torch_counts: Callable[[int], None]) -> None:
    assert choose("auto", machine=machine()).kind == "cpu"
    torch_counts(2)
    assert choose("auto", machine=machine(gpus=2)).kind == "cuda"
    devices = choose("auto", machine=machine(npus=2, gpus=2))
    assert (devices.kind, devices.count, devices.simulated) == ("npu", 2, False)


def test_a_gpu_that_torch_cannot_use_is_none(machine: MakeMachine, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    devices = choose("auto", machine=machine(gpus=1, PYTHONPATH=str(tmp_path)))
    assert devices.kind == "cpu"


@pytest.mark.parametrize("wanted", ["npu", "auto"])
def test_in_a_shell_with_simulated_npus_they_are_the_npus(machine: MakeMachine, wanted: str) -> None:
    devices = choose(wanted, machine=machine(**SHELL))
    assert (devices.kind, devices.count, devices.simulated, devices.card) == ("npu", 4, True, "910B1")
    # Its processes load the simulated CANN even where the machine has cards.
    assert choose(wanted, machine=machine(npus=8, **SHELL)).simulated


def test_nothing_is_simulated_unless_it_is_asked_for(machine: MakeMachine) -> None:
    assert not choose("auto", machine=machine()).simulated
    with pytest.raises(NpukitError, match="--device sim"):
        choose("npu", machine=machine())
    devices = choose("sim", 2, "910B1", machine())
    assert (devices.kind, devices.count, devices.simulated, devices.card, devices.total) == ("npu", 2, True, "910B1", 2)


def test_visible_cards_are_those_that_cann_shows(machine: MakeMachine) -> None:
    assert choose("npu", machine=machine(npus=8, ASCEND_RT_VISIBLE_DEVICES="2,5")).visible == (2, 5)
    assert choose("auto", machine=machine(npus=8, ASCEND_RT_VISIBLE_DEVICES="")).kind == "cpu"
    with pytest.raises(NpukitError, match="hides all 8 NPUs"):
        choose("npu", machine=machine(npus=8, ASCEND_RT_VISIBLE_DEVICES="3,1"))


def test_simulated_cards_have_the_numbers_that_the_variable_names(machine: MakeMachine) -> None:
    devices = choose("sim", machine=machine(ASCEND_RT_VISIBLE_DEVICES="4,5"))
    assert (devices.count, devices.visible, devices.total) == (2, (4, 5), 6)


def test_more_than_there_are_is_a_mistake(machine: MakeMachine, torch_counts: Callable[[int], None]) -> None:
    torch_counts(2)
    for wanted, there in (("npu", machine(npus=2)), ("cuda", machine(gpus=2)), ("npu", machine(**SHELL))):
        with pytest.raises(NpukitError, match=r"5 [NG]PUs were requested"):
            choose(wanted, 5, machine=there)
    with pytest.raises(NpukitError, match="4 NPUs were requested, but 2 are visible"):
        choose("sim", 4, machine=machine(ASCEND_RT_VISIBLE_DEVICES="0,1"))


def test_a_plan_can_be_made_for_what_is_not_there(machine: MakeMachine) -> None:
    devices = choose("npu", 8, machine=machine(), suppose=True)
    assert (devices.kind, devices.count, devices.simulated) == ("npu", 8, False)


@pytest.mark.parametrize(
    ("wanted", "hidden"),
    [
        (Wanted.cpu, {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"}),
        (Wanted.cuda, {"ASCEND_RT_VISIBLE_DEVICES"}),
        (Wanted.npu, set()),
    ],
)
def test_a_process_sees_its_own_kind_of_device_and_no_other(
    machine: MakeMachine, torch_counts: Callable[[int], None], wanted: Wanted, hidden: set[str]
) -> None:
    torch_counts(1)
    before = {"CUDA_VISIBLE_DEVICES": "0", "ASCEND_RT_VISIBLE_DEVICES": "0", "HOME": "/home/me"}
    variables = choose(wanted, machine=machine(npus=1)).environment(before)
    assert variables[GIVEN] == wanted.value
    assert {name for name in before if variables[name] == ""} == hidden


@pytest.mark.parametrize("count", [1, 3])
def test_simulated_devices_are_called_simulated(machine: MakeMachine, count: int) -> None:
    assert "simulated" in str(choose("sim", count, machine=machine()))
    assert "simulated" in str(choose("auto", count, machine=machine(**SHELL)))
    assert "simulated" not in str(choose("npu", count, machine=machine(npus=3)))


JOB = """JobId=7 JobName=train
   NodeList=n[1-3]
     Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=npu:4({on_others})
     Nodes=n3 CPU_IDs=0-3 Mem=0 GRES=nic:1(IDX:0),npu:2(IDX:5,7)
"""


@pytest.mark.parametrize(
    ("environ", "cards"),
    [
        ({"SLURM_STEP_GPUS": "2,3"}, "2,3"),
        ({"SLURM_JOB_GPUS": "6-7"}, "6,7"),
        ({"SLURMD_NODENAME": "n2"}, "0,1,2,3"),
        ({"SLURMD_NODENAME": "n3"}, "5,7"),
        ({"SLURMD_NODENAME": "n3", "ASCEND_RT_VISIBLE_DEVICES": "1"}, "1"),
        ({"SLURMD_NODENAME": "n9"}, None),
    ],
)
def test_a_job_gets_the_cards_that_slurm_gave_it(
    machine: MakeMachine, tmp_path: Path, environ: dict[str, str], cards: str | None
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n/bin/cat <<END\n{JOB.format(on_others='IDX:0-3')}END\n")
    scontrol.chmod(0o755)
    on = machine(npus=8, SLURM_JOB_ID="7", PATH="/", **environ)
    devices = choose("npu", machine=on)
    assert devices.environment(on.environ).get("ASCEND_RT_VISIBLE_DEVICES") == cards
    assert devices.count == (len(cards.split(",")) if cards else 8)


def test_cards_that_slurm_counts_but_does_not_name_are_refused(machine: MakeMachine, tmp_path: Path) -> None:
    """Two jobs on one node would compute on the same cards."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n/bin/cat <<END\n{JOB.format(on_others='CNT:4')}END\n")
    scontrol.chmod(0o755)
    environ = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "PATH": "/"}
    with pytest.raises(NpukitError, match="ASCEND_RT_VISIBLE_DEVICES"):
        choose("npu", machine=machine(npus=8, **environ))
    for number in range(4, 8):
        (tmp_path / "dev" / f"davinci{number}").unlink()
    assert choose("npu", machine=machine(npus=4, **environ)).count == 4, "all of the node's cards"


def test_a_pods_list_of_ranks_does_not_reach_a_process(machine: MakeMachine) -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0,1", "LOCAL_WORLD_SIZE": "2"}
    assert not pod.keys() & choose("cpu", machine=machine()).environment(pod).keys()
    rank = {**pod, "LOCAL_RANK": "1"}
    assert pod.keys() <= choose("cpu", machine=machine()).environment(rank).keys()
