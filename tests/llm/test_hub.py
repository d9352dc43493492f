"""A hub that cannot be reached is one sentence, at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.llm.hub import OFFLINE, check_hub


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in (*OFFLINE, "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", ["model", "dataset"])
@pytest.mark.parametrize("hub", ["huggingface", "modelscope"])
def test_what_is_nowhere_is_refused_with_the_ways_out(kind: Any, hub: Any) -> None:
    with pytest.raises(NpukitError) as raised:
        check_hub(kind, "owner/name", hub)
    assert all(way in str(raised.value) for way in ("owner/name", "HF_ENDPOINT", "HTTPS_PROXY", "MODELSCOPE"))


def test_what_is_in_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that it is put back
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    (tmp_path / "hub" / "models--owner--name" / "snapshots").mkdir(parents=True)
    check_hub("model", "owner/name", "huggingface")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_proxy_or_a_wish_to_stay_offline_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy:3128"})
    check_hub("model", "owner/name", "huggingface")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check_hub("model", "owner/name", "huggingface")
