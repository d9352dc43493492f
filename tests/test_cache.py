"""What is loaded from the cache, only those may put there who are trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit import cache
from npukit.errors import NpukitError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / "shared" / "cache"))
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared" / "cache"


def test_a_new_folder_and_one_s_own_are_fine(folder: Path) -> None:
    assert cache.cache_folder() == folder
    folder.mkdir(mode=0o755)
    assert cache.cache_folder() == folder


def test_a_folder_that_everybody_can_write_to_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(NpukitError, match="Other users"):
        cache.cache_folder()


def test_a_folder_that_another_user_made_in_a_shared_place_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o755)
    monkeypatch.setattr("os.geteuid", lambda: folder.stat().st_uid + 1)
    if folder.stat().st_uid == 0:  # as in a container: what root made is trusted
        import os

        os.chown(folder, 12345, -1)
    assert cache.cache_folder() == folder, "an administrator's, where others cannot make folders"
    folder.parent.chmod(0o1777)
    with pytest.raises(NpukitError, match="Other users"):
        cache.cache_folder()
