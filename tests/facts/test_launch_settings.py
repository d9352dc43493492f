from __future__ import annotations

from npukit.facts.launch_settings import launch_settings

KNOWN = {"threads": "12", "interface": "enp1"}


def names(environ: dict[str, str], npu: bool = True, nodes: int = 2) -> dict[str, str]:
    return {setting.name: setting.value for setting in launch_settings(environ, npu, nodes, KNOWN)}


def test_braces_are_filled_and_everything_has_a_reason() -> None:
    settings = names({})
    assert settings["OMP_NUM_THREADS"] == "12"
    assert settings["HCCL_SOCKET_IFNAME"] == settings["GLOO_SOCKET_IFNAME"] == "enp1"
    assert all(setting.reason for setting in launch_settings({}, True, 2, KNOWN))


def test_what_the_user_has_set_wins() -> None:
    assert "TASK_QUEUE_ENABLE" not in names({"TASK_QUEUE_ENABLE": "0"})
    assert "TASK_QUEUE_ENABLE" in names({})


def test_what_would_contradict_the_user_is_left_out() -> None:
    assert "TASK_QUEUE_ENABLE" not in names({"ASCEND_LAUNCH_BLOCKING": "1"})
    assert "PYTORCH_NPU_ALLOC_CONF" not in names({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    assert "HCCL_SOCKET_IFNAME" not in names({"HCCL_IF_IP": "10.0.0.1"})


def test_only_what_matters_here() -> None:
    assert "HCCL_SOCKET_IFNAME" not in names({}, nodes=1)
    assert set(names({}, npu=False, nodes=1)) == {"OMP_NUM_THREADS", "PYTHONUNBUFFERED"}


def test_an_unknown_interface_is_not_invented() -> None:
    assert "HCCL_SOCKET_IFNAME" not in {setting.name for setting in launch_settings({}, True, 2, {"interface": ""})}
