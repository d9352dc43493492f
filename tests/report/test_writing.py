"""Files and folders are there whole or not at all, and what stops them is one sentence."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.report.unfinished import remove_unfinished
from npukit.report.writing import (
    check_file,
    disk_errors_named,
    is_disk_full,
    make_folder,
    whole_file,
    whole_folder,
    write_bytes,
    write_json,
    write_text,
)


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "a.md", "ü\n")
    write_json(tmp_path / "a.json", {"name": "ü"})
    write_bytes(tmp_path / "a.bin", b"\xff")
    assert (tmp_path / "a.md").read_bytes() == "ü\n".encode()
    assert json.loads((tmp_path / "a.json").read_text()) == {"name": "ü"}
    assert {file.name for file in tmp_path.iterdir()} == {"a.md", "a.json", "a.bin"}


def test_a_folder_that_may_not_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_file(tmp_path / "a.json")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(NpukitError, match="no permission"):
        check_file(tmp_path / "a.json")


def test_a_new_file_has_the_usual_mode_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "peer").touch()
    write_text(tmp_path / "new", "")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "peer").stat().st_mode
    (tmp_path / "new").chmod(0o750)
    write_text(tmp_path / "new", "again")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o750


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "text"


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_text(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("target", ["missing/file", "folder", "file/below"])
def test_a_place_where_no_file_can_be_is_one_sentence(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(NpukitError, match="Cannot write") as caught:
        write_text(tmp_path / target, "text")
    assert len(str(caught.value).splitlines()) == 1
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.parametrize("target", ["file", "file/below", "/proc/new"])
def test_a_place_where_no_folder_can_be_is_one_sentence(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NpukitError, match="Cannot write") as caught:
        make_folder(tmp_path / target)
    assert caught.value.exit_code == 2
    make_folder(tmp_path / "new" / "folder")
    make_folder(tmp_path / "new" / "folder")


def test_a_failed_block_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "file") as beside:
        beside.write_text("half")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "folder") as beside:
        (beside / "part").touch()
        raise ZeroDivisionError
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(NpukitError, match="disk is full"), whole_file(tmp_path / "file"):
        Path("/dev/full").write_text("text")
    with pytest.raises(NpukitError, match="disk is full"), whole_folder(tmp_path / "folder"):
        raise RuntimeError(f"I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")  # as safetensors says it
    assert not list(tmp_path.iterdir())
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))


def test_an_error_about_another_file_is_not_taken_for_one_of_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "folder"):
        (tmp_path / "input").read_text()


def test_a_folder_must_be_new_or_empty_unless_it_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    inode = folder.stat().st_ino
    with whole_folder(folder) as beside:
        (beside / "first").touch()
    assert folder.stat().st_ino == inode, "a shell that stands in the empty folder must still be in it"
    with pytest.raises(NpukitError, match="not empty"), whole_folder(folder):
        pass
    with whole_folder(folder, replace=True) as beside:
        (beside / "second").touch()
    assert [file.name for file in folder.iterdir()] == ["second"]
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    process = os.fork()
    if process == 0:
        with whole_file(tmp_path / "file"), whole_folder(tmp_path / "folder"):
            os._exit(1)
    os.waitpid(process, 0)
    assert len(list(tmp_path.iterdir())) == 2
    remove_unfinished(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_file_system_without_a_size_is_not_called_full() -> None:
    with pytest.raises(NpukitError) as raised, whole_folder(Path("/proc/new")):
        pass
    assert "full" not in str(raised.value)


def test_a_folder_above_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "journal"))
    with pytest.raises(NpukitError, match="read-only file system"), disk_errors_named(tmp_path / "journal" / "0001"):
        raise refused
