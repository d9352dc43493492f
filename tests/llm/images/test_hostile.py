"""Videos, recordings and archives that others made: a sentence each, in bounded memory, and nothing outside."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.hostile_media import ARCHIVES, CLIPS, HOSTILE, RECORDINGS, SAFE_ARCHIVES
from tests.llm.images.test_video import make_file

from npukit.errors import NpukitError
from npukit.llm.data.archive import unpacked
from npukit.llm.images.audio import read_length, read_samples
from npukit.llm.images.files import BadImage
from npukit.llm.images.video import read_frames, read_header


def test_there_are_enough_cases() -> None:
    assert len(HOSTILE) + len(CLIPS) + len(RECORDINGS) + len(ARCHIVES) >= 60


@pytest.mark.parametrize("case", RECORDINGS)
def test_recordings_get_one_sentence(case: str, tmp_path: Path) -> None:
    content, code = RECORDINGS[case]
    file = tmp_path / "cat.wav"
    file.write_bytes(content)
    with pytest.raises(BadImage, match=code) as error:
        read_length(file, 16_000, str(file))
        read_samples(file, 16_000, str(file))
    assert str(file) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("case", CLIPS)
def test_clips_get_one_sentence(case: str, tmp_path: Path) -> None:
    pytest.importorskip("av")
    content, code = CLIPS[case]
    file = tmp_path / "cat.mp4"
    file.write_bytes(content)
    with pytest.raises(BadImage, match=code) as error:
        header = read_header(file, "the video cat.mp4")
        list(read_frames(file, [header.total - 1], "the video cat.mp4"))
    assert "cat.mp4" in str(error.value) and "\n" not in str(error.value)


def test_frames_that_are_not_there_are_not_waited_for(tmp_path: Path) -> None:
    """Its header claims four billion."""
    content = bytearray(make_file(tmp_path / "clip.avi").read_bytes())
    for head, place in ((b"avih", 24), (b"strh", 40)):
        at = content.index(head) + place
        content[at : at + 4] = b"\xff" * 4
    (tmp_path / "clip.avi").write_bytes(content)
    with pytest.raises(BadImage, match=r"clip.avi"):
        read_header(tmp_path / "clip.avi", "clip.avi")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "clips.zip"


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_get_one_sentence(case: str, archive: Path) -> None:
    content, code = ARCHIVES[case]
    archive.write_bytes(content)
    with pytest.raises(NpukitError, match=code) as error:
        unpacked(archive)
    assert "\n" not in str(error.value) and not any(archive.parent.rglob("files"))


@pytest.mark.parametrize("case", SAFE_ARCHIVES)
def test_nothing_leaves_the_folder_of_an_archive(case: str, archive: Path) -> None:
    content, names = SAFE_ARCHIVES[case]
    archive.write_bytes(content)
    folder = unpacked(archive)
    found = [file for file in archive.parent.rglob("*") if file.is_file() and "files" in file.parts]
    assert {str(file.relative_to(folder)) for file in found} == names
    assert not any(file.is_symlink() for file in archive.parent.rglob("*"))


def test_nothing_takes_much_memory(archive: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content, _ in RECORDINGS.values():
        with pytest.raises(BadImage):
            read_length(content, 16_000, "it")
            read_samples(content, 16_000, "it")
    for number, (content, _) in enumerate(ARCHIVES.values()):
        place = archive.with_name(f"{number}.zip")
        place.write_bytes(content)
        with pytest.raises(NpukitError):
            unpacked(place)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
