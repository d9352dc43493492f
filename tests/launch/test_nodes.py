from __future__ import annotations

import pytest

from npukit.errors import NpukitError
from npukit.launch.nodes import NodePlan, from_environment, from_hostfile, is_rank, parse_master
from npukit.machine.slurm import expand_hosts

SLURM = {
    "SLURM_JOB_ID": "120042",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "atlas[08-09],spare1",
}
MODELARTS = {
    "MA_NUM_HOSTS": "2",
    "MA_NUM_GPUS": "8",
    "VC_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "job-worker-0.job,job-worker-1.job",
}
VOLCANO = {"VC_WORKER_NUM": "3", "VC_TASK_INDEX": "2", "VC_WORKER_HOSTS": "a-0.a,a-1.a,a-2.a"}
PYTORCH_JOB = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "4", "RANK": "3"}
TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "0",
    "PET_NPROC_PER_NODE": "16",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29400",
}

ASCEND_JOB = {
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "2222",
    "WORLD_SIZE": "16",
    "RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "LOCAL_RANK": "0,1,2,3,4,5,6,7",
}
PLUG_IN = {**PYTORCH_JOB, **VOLCANO, "VC_MASTER_HOSTS": "a-master-0.a"}  # a Volcano job with a master and workers
OF_TORCHRUN = {**ASCEND_JOB, "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("environ", "plan"),
    [
        (ASCEND_JOB, NodePlan(2, 1, "job-master-0", 2222, 8, "AscendJob")),
        (ASCEND_JOB | {"WORLD_SIZE": "8", "RANK": "0"}, NodePlan(ranks=8, source="AscendJob")),
        (
            ASCEND_JOB | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"},
            NodePlan(2, 1, "job-master-0", 2222, 1, "AscendJob"),
        ),
        (OF_TORCHRUN, NodePlan()),
        (ASCEND_JOB | {"LOCAL_RANK": "3"}, NodePlan()),
        (PLUG_IN, NodePlan(4, 3, "job-master-0", 23456, None, "Kubernetes, WORLD_SIZE counts nodes")),
        (SLURM, NodePlan(3, 1, "atlas08", 20042, None, "SLURM")),
        (SLURM | {"SLURM_GPUS_ON_NODE": "8"}, NodePlan(3, 1, "atlas08", 20042, 8, "SLURM")),
        (SLURM | {"SLURM_JOB_NODELIST": "atlas08", "SLURM_NODEID": "0"}, NodePlan()),
        (MODELARTS, NodePlan(2, 1, "job-worker-0.job", 6060, 8, "ModelArts")),
        (MODELARTS | {"MA_NUM_HOSTS": "1"}, NodePlan()),
        (VOLCANO, NodePlan(3, 2, "a-0.a", 6060, None, "Volcano")),
        (PYTORCH_JOB, NodePlan(4, 3, "job-master-0", 23456, None, "Kubernetes, WORLD_SIZE counts nodes")),
        (TRAIN_JOB, NodePlan(2, 0, "job-node-0-0.job", 29400, 16, "Kubernetes, PET_NNODES counts nodes")),
        (PYTORCH_JOB | {"LOCAL_RANK": "0"}, NodePlan()),
        ({}, NodePlan()),
    ],
)
def test_schedulers_are_understood(environ: dict[str, str], plan: NodePlan) -> None:
    assert from_environment(environ) == plan


@pytest.mark.parametrize(
    "environ",
    [
        ASCEND_JOB | {"WORLD_SIZE": "12"},
        ASCEND_JOB | {"LOCAL_WORLD_SIZE": "4"},
        ASCEND_JOB | {"RANK": "2"},
        MODELARTS | {"MA_NUM_HOSTS": "3"},
        VOLCANO | {"VC_MASTER_HOSTS": "a-master-0.a"},
        VOLCANO | ASCEND_JOB,
        SLURM | MODELARTS,
        SLURM | {"SLURM_JOB_NODELIST": "n[a-b]"},
    ],
)
def test_variables_that_contradict_each_other_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(NpukitError):
        from_environment(environ)


def test_a_pod_is_not_taken_for_a_rank() -> None:
    assert is_rank(OF_TORCHRUN) and is_rank({"LOCAL_RANK": "1", "RANK": "9", "WORLD_SIZE": "16"})
    assert not is_rank(ASCEND_JOB) and not is_rank(PYTORCH_JOB)


def test_slurm_with_a_task_a_rank_is_refused() -> None:
    with pytest.raises(NpukitError, match="--ntasks-per-node=1"):
        from_environment(SLURM | {"SLURM_LOCALID": "3"})


def test_a_node_beyond_the_job_is_refused() -> None:
    with pytest.raises(NpukitError, match="has no node 2"):
        from_environment(MODELARTS | {"VC_TASK_INDEX": "2"})


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b-1", ["a", "b-1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[098-101]x,m", ["n098x", "n099x", "n100x", "n101x", "m"]),
        ("r[1-2]n[0,5]", ["r1n0", "r1n5", "r2n0", "r2n5"]),
        ("", []),
    ],
)
def test_slurms_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


def test_hostfile() -> None:
    text = "# our machines\natlas1 slots=8\n\natlas2 slots=4  # half of it\n"
    assert from_hostfile(text, {"atlas2", "10.0.0.2"}) == NodePlan(2, 1, "atlas1", 29500, 4, "hostfile")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("atlas1\natlas2", "names atlas1, atlas2"), ("\n# none\n", "names no host"), ("me slots=x", "must be a number")],
)
def test_bad_hostfiles(text: str, sentence: str) -> None:
    with pytest.raises(NpukitError, match=sentence):
        from_hostfile(text, {"me"})


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536"])
def test_bad_masters(text: str) -> None:
    with pytest.raises(NpukitError, match="is not ADDRESS:PORT"):
        parse_master(text)


def test_masters() -> None:
    assert parse_master("node0:29500") == ("node0", 29500)
    assert parse_master("[fe80::1]:80") == ("fe80::1", 80)
