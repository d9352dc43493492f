"""How many processes, on which machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.launch import launch
from npukit.launch.device import Device
from npukit.llm.start import asked_world_size, count_ranks, nodes_of


@pytest.fixture
def eight_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        (tmp_path / f"davinci{number}").touch()
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr(launch, "DEVICE_FILES", tmp_path)


@pytest.mark.usefixtures("eight_cards")
def test_every_visible_card_unless_something_else_is_asked_for() -> None:
    assert count_ranks(None, Device.npu, {}, every_card=True) == 8
    assert count_ranks(None, Device.npu, {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2"}, every_card=True) == 3
    assert count_ranks(None, Device.cuda, {"CUDA_VISIBLE_DEVICES": "5"}, every_card=True) == 1
    assert count_ranks(None, Device.npu, {}, every_card=False) == 1
    assert count_ranks(None, Device.npu, {"NPROC_PER_NODE": "4"}, every_card=True) == 4
    assert count_ranks(2, Device.npu, {"NPROC_PER_NODE": "4"}, every_card=True) == 2
    assert count_ranks(None, Device.sim, {}, every_card=True) == 1
    assert count_ranks(None, Device.cpu, {"LOCAL_WORLD_SIZE": "2"}, every_card=True) == 2


def test_more_processes_than_visible_cards_is_a_mistake() -> None:
    with pytest.raises(NpukitError, match="4 processes for 2 visible cards"):
        count_ranks(None, Device.sim, {"NPROC_PER_NODE": "4", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}, every_card=False)
    with pytest.raises(NpukitError, match="NPROC_PER_NODE is 'all'"):
        count_ranks(None, Device.npu, {"NPROC_PER_NODE": "all"}, every_card=False)


def test_several_machines_by_swifts_variables() -> None:
    variables = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7007"}
    plan = nodes_of(variables)
    assert (plan.nodes, plan.rank, plan.master, plan.port) == (2, 1, "10.0.0.1", 7007)
    assert asked_world_size(None, variables | {"NPROC_PER_NODE": "4"}) == 8
    assert nodes_of({}).nodes == nodes_of({"NNODES": "1"}).nodes == 1
    with pytest.raises(NpukitError, match="each machine needs NODE_RANK and MASTER_ADDR too"):
        nodes_of({"NNODES": "2"})
    with pytest.raises(NpukitError, match="must be numbers"):
        nodes_of(variables | {"NODE_RANK": "first"})


def test_a_rank_of_torchrun_knows_the_size_of_its_job() -> None:
    assert asked_world_size(None, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6"}) == 6
