"""Public data sets as they lie on a hub: their rows, texts of other rows that do not fit, and zip files of media."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.check import find_layout, row_of
from npukit.llm.data.row import Illustrated
from npukit.llm.data.sources import find_table
from npukit.llm.tasks.task import named

COCO = {"image": "a.png", "objects": {"category": [15, 0], "bbox": [[1, 2, 3, 4], [5, 6, 7, 8]]}}
ROWS: dict[str, tuple[dict[str, Any], str, Any, str]] = {
    "coco": (COCO, "Task: Object Detection", "a.png", "<ref-object><bbox>\n<ref-object><bbox>"),
    "aishell_1": ({"Audio:FILE": "a.wav", "Text:LABEL": "你 好"}, "语音转文本", "a.wav", "你好"),
    "video_chatgpt": (
        {"video_name": "v", "question": "None", "question_1": "What?", "answer": "A cat."},
        "What?",
        "Test_Videos/v.mp4",
        "A cat.",
    ),
}


def rows_of(path: Path, rows: list[dict[str, Any]], task: str, **source: Any) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    one = Source(path=str(path), **source)
    table = find_table(one, DataOptions(train=(one,)))
    records = list(table.records())
    layout = find_layout(records, table, named(task))
    return [row_of(record, layout, named(task)) for record in records]


@pytest.mark.parametrize("preset", ROWS)
def test_rows_of_public_data_sets(preset: str, tmp_path: Path) -> None:
    row, question, medium, answer = ROWS[preset]
    (found,) = rows_of(tmp_path / "rows.jsonl", [row], "sft", preset=preset)
    assert isinstance(found, Illustrated) and [turn["content"] for turn in found.turns] == [question, answer]
    assert [each.source for each in found.media] == [medium]
    if preset == "coco":
        assert found.media.objects and found.media.objects.names == ("cat", "person")
    with pytest.raises(NpukitError, match=preset):
        rows_of(tmp_path / "rows.jsonl", [{"query": "a", "response": "b"}], "sft", preset=preset)


def test_classes_that_are_marked_by_ones(tmp_path: Path) -> None:
    (found,) = rows_of(tmp_path / "r.jsonl", [{"webp": "a.png", "npy": [0, 1, 0, 1]}], "classify", preset="voc_2007")
    assert found.labels == (1.0, 3.0) and [medium.source for medium in found.media] == ["a.png"]


def test_a_preset_that_is_none_is_named() -> None:
    with pytest.raises(NpukitError, match="known are coco"):
        find_table(Source(path="x.jsonl", preset="cocoa"), DataOptions(train=("x.jsonl",)))


def test_texts_of_other_rows_do_not_fit(tmp_path: Path) -> None:
    rows = [{"image": f"{number}.png", "captions": [f"cat {number}", f"dog {number}"]} for number in range(6)]
    options = {"columns": {"images": "image", "positive": "captions"}, "question": "<image>", "negatives": 4}
    found = rows_of(tmp_path / "rows.jsonl", rows, "rerank", **options)
    again = rows_of(tmp_path / "rows.jsonl", rows, "rerank", **options)
    assert found == again and all(row.labels == (1.0, 1.0, 0.0, 0.0, 0.0, 0.0) for row in found)
    for number, row in enumerate(found):
        texts = [text[-1]["content"] for text in row.texts]
        assert len(set(texts)) == 6 and not any(text.endswith(str(number)) for text in texts[2:])


def test_an_archive_is_unpacked_beside_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "videos.zip", "w") as archive:
        archive.writestr("Test_Videos/v.mp4", b"a video")
        archive.writestr("../../evil.txt", b"elsewhere")
    row, options = ROWS["video_chatgpt"][0], {"preset": "video_chatgpt", "archive": "videos.zip"}
    for _ in range(2):  # the second time it is there
        (found,) = rows_of(tmp_path / "rows.jsonl", [row], "sft", **options)
        assert Path(found.media[0].source).read_bytes() == b"a video"
    assert not list(tmp_path.glob("*.txt"))
    (tmp_path / "videos.zip").write_bytes(b"no archive")
    with pytest.raises(NpukitError, match="not a zip file"):
        rows_of(tmp_path / "rows.jsonl", [row], "sft", **options)
    (tmp_path / "videos.zip").unlink()
    with pytest.raises(NpukitError, match=r"no videos\.zip"):
        rows_of(tmp_path / "rows.jsonl", [row], "sft", **options)
