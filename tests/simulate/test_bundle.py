"""A packed simulated NPU is used where there is neither network nor compiler."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.simulate import build, bundle


def test_unpacked_elsewhere_it_is_ready(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_wheel = next((small / "wheels").glob("torch_npu-*"))
    monkeypatch.setattr(bundle, "_npukit", lambda: str(some_wheel))
    result = bundle.pack(small / "sim.tar")
    assert result.torch == build.plan().torch_version and result.size == (small / "sim.tar").stat().st_size

    with tarfile.open(result.file) as archive:
        archive.extractall(small / "elsewhere", filter="data")
    unpacked = small / "elsewhere" / bundle.FOLDER
    assert (unpacked / "wheels" / some_wheel.name).exists()
    monkeypatch.setenv("NPUKIT_CACHE", str(unpacked / "cache"))
    monkeypatch.setenv("CC", "no-compiler")
    monkeypatch.setenv("PIP_FIND_LINKS", str(small / "gone"))
    assert build.ensure().ready
    assert (build.plan().home / "lib64" / "libascendcl.so").exists()


def test_without_its_wheels_nothing_is_written(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_npukit", lambda: "npukit==0.0.0")
    with pytest.raises(NpukitError, match=r"npukit==0\.0\.0"):
        bundle.pack(small / "sim.tar")
    assert not [*small.glob("*.tar")]
