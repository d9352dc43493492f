from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from npukit.errors import NpukitError
from npukit.launch.container import (
    compose,
    docker,
    docker_text,
    kubernetes,
    parse_numbers,
    plan_container,
    plan_simulated,
)
from npukit.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A server with four cards, its npu-smi in the second of the usual places."""
    files = [
        *(f"dev/davinci{number}" for number in range(4)),
        "dev/davinci_manager",
        "usr/local/Ascend/driver/version.info",
        "usr/local/dcmi/libdcmi.so",
        "usr/local/sbin/npu-smi",
        "etc/ascend_install.info",
    ]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    return Machine(root=tmp_path)


def test_docker_gets_the_cards_what_opens_them_and_the_driver(machine: Machine) -> None:
    command = docker(plan_container("image", (1, 2), ("python", "train.py"), machine))
    devices = [command[place + 1] for place, word in enumerate(command) if word == "--device"]
    mounts = [command[place + 1].split(":")[0] for place, word in enumerate(command) if word == "-v"]
    assert devices == ["/dev/davinci1", "/dev/davinci2", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert mounts[:-1] == [
        "/usr/local/Ascend/driver",
        "/usr/local/dcmi",
        "/usr/local/sbin/npu-smi",
        "/etc/ascend_install.info",
    ]
    assert command[command.index("--shm-size") + 1] == "32g"
    assert command[-3:] == ["image", "python", "train.py"]


def test_all_cards_unless_some_are_named(machine: Machine) -> None:
    assert plan_container(machine=machine).cards == (0, 1, 2, 3)


def test_a_card_that_is_not_there(machine: Machine) -> None:
    with pytest.raises(NpukitError, match="no card 7 on this machine, which has 0, 1, 2, 3"):
        plan_container(cards=(7,), machine=machine)


def test_text_is_the_same_command(machine: Machine) -> None:
    import shlex

    plan = plan_container("image", (0,), machine=machine)
    assert shlex.split(docker_text(plan).replace("\\\n", "")) == docker(plan)


def test_compose_says_the_same(machine: Machine) -> None:
    service = yaml.safe_load(compose(plan_container("image", (0, 3), machine=machine)))["services"]["npu"]
    assert service["devices"][:2] == ["/dev/davinci0:/dev/davinci0", "/dev/davinci3:/dev/davinci3"]
    assert service["shm_size"] == "32g"


def test_kubernetes_asks_ascends_plugin_for_cards_and_volcano_for_a_place(machine: Machine) -> None:
    job = yaml.safe_load(kubernetes(plan_container("image", (0, 1), machine=machine)))
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    assert job["spec"]["schedulerName"] == "volcano"
    assert pod["containers"][0]["resources"]["limits"] == {"huawei.com/Ascend910": 2}
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}


def test_a_machine_without_cards_is_told_so(tmp_path: Path) -> None:
    assert plan_container(machine=Machine(root=tmp_path)).for_another_machine


def test_a_simulated_one_needs_nothing_of_the_machine() -> None:
    plan = plan_simulated(command=["pytest", "--npu-sim"])
    assert not {"--device", "/dev/davinci0"} & set(docker(plan)) and docker(plan)[-2:] == ["pytest", "--npu-sim"]
    assert "devices" not in yaml.safe_load(compose(plan))["services"]["npu"]
    pod = yaml.safe_load(kubernetes(plan))["spec"]["tasks"][0]["template"]["spec"]
    assert "resources" not in pod["containers"][0]


@pytest.mark.parametrize("text", ["", "a", "0, 1", "3-1", "-1", "0,,1"])
def test_bad_lists_of_cards(text: str) -> None:
    with pytest.raises(NpukitError, match="--visible-devices"):
        parse_numbers(text)
