"""How many processes, on which machines."""

from __future__ import annotations

import pytest

from npukit.errors import NpukitError
from npukit.llm.start import asked_ranks, asked_world_size, nodes_of


def test_ranks_are_asked_for_by_an_option_torchrun_or_swifts_variable() -> None:
    assert asked_ranks(None, {}) is None
    assert asked_ranks(None, {"NPROC_PER_NODE": "4"}) == 4
    assert asked_ranks(2, {"NPROC_PER_NODE": "4"}) == 2
    assert asked_ranks(None, {"LOCAL_WORLD_SIZE": "2"}) == 2
    with pytest.raises(NpukitError, match="NPROC_PER_NODE is 'all'"):
        asked_ranks(None, {"NPROC_PER_NODE": "all"})


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
