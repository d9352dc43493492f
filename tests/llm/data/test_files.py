"""Readers: every kind of file gives the same rows, with the lines they stand on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.errors import NpukitError
from npukit.llm.data import files, json_array
from npukit.llm.data.files import MAX_CHARACTERS, read_file

ROWS = [{"text": "one", "n": "1"}, {"text": "zwei\nLines", "n": "2"}, {"text": "三 \u2028", "n": "3"}]


def lines(path: Path) -> list[tuple[int, Any]]:
    return [(record.number, record.value) for record in read_file(path)]


@pytest.mark.parametrize(
    ("name", "content", "numbers"),
    [
        ("a.jsonl", "\n".join(json.dumps(row) for row in ROWS), [1, 2, 3]),
        ("a.jsonl", "\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\r\n", [1, 3, 5]),
        ("a.json", "\ufeff" + json.dumps(ROWS, indent=2), [2, 6, 10]),
        ("a.json", json.dumps(ROWS), [1, 2, 3]),
        ("a.json", "\n".join(json.dumps(row) for row in ROWS), [1, 2, 3]),
        ("a.json", "\n".join(json.dumps(row, indent=1) for row in ROWS), [1, 5, 9]),
        ("a.jsonl", json.dumps(ROWS, indent=0), [2, 6, 10]),
        ("a.csv", 'text;n\none;1\n"zwei\nLines";2\n三 \u2028;3\n', [2, 3, 5]),
        ("a.csv", '\ufefftext,n\r\none,1\r\n"zwei\nLines",2\r\n\r\n三 \u2028,3\r\n', [2, 3, 6]),
    ],
)
def test_rows_and_their_lines(name: str, content: str, numbers: list[int], tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode())
    assert lines(file) == list(zip(numbers, ROWS, strict=True))


values = st.text(max_size=20) | st.floats(allow_nan=False) | st.integers()


@given(rows=st.lists(st.dictionaries(st.text(max_size=5), values) | values, max_size=9))
def test_arrays_are_read_piece_by_piece(rows: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the size of the pieces, also when a value or a character lies across two."""
    file = tmp_path_factory.mktemp("pieces") / "a.json"
    file.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "CHUNK", 3)
        assert [value for _, value in json_array.read_json_values(file)] == rows


def test_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet

    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    assert lines(file) == list(zip([1, 2, 3], ROWS, strict=True))
    assert next(read_file(file)).place == f"{file}, row 1"


def test_long_texts_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TEXT_PIECE", 10)
    file = tmp_path / "a.txt"
    file.write_text("one line\nanother\nand the last")
    assert lines(file) == [
        (1, {"text": "one line\nanother\n", "ends": False}),
        (3, {"text": "and the last", "ends": True}),
    ]


def test_a_row_of_a_long_line_is_named_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(ROWS))
    assert [record.place for record in read_file(file)][2] == f"{file}, row 3"


def test_one_bad_line_leaves_the_others(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": \n\xff\xfe\n{"a": 2}\n')
    problems = [record.problem for record in read_file(file)]
    assert problems[0] is None and problems[3] is None
    assert "is not JSON" in str(problems[1]) and problems[2] == "is not UTF-8"


def test_what_stands_after_an_array_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('[{"a": 1}]\n[{"a": 2}]')
    with pytest.raises(NpukitError, match="line 2: there is more after the end"):
        list(read_file(file))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_row_without_end_is_a_bad_row_and_the_others_are_read(tmp_path: Path, suffix: str) -> None:
    """A tokenizer would be busy with it for minutes, to keep the few thousand tokens of the cutoff."""
    rows = [{"instruction": "Hi", "output": text} for text in ("Hello", "a" * (MAX_CHARACTERS + 1), "Bye")]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == ".csv":
        path.write_text("instruction,output\n" + "".join(f"{row['instruction']},{row['output']}\n" for row in rows))
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(json.dumps(rows) if suffix == ".json" else lines)
    read = list(read_file(path))
    assert [record.problem is None for record in read] == [True, False, True] and read[2].value["output"] == "Bye"


@pytest.mark.parametrize("stored_once", [True, False])
def test_a_small_file_that_holds_gigabytes_is_refused(tmp_path: Path, stored_once: bool) -> None:
    text = "a" * (1 << 22)
    values = pyarrow.DictionaryArray.from_arrays([0] * 1000, [text]) if stored_once else [text] * 70
    table = pyarrow.table({"text": values})
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=stored_once)
    assert path.stat().st_size < 100_000
    with pytest.raises(NpukitError, match="times its size"):
        for _ in read_file(path):
            pass
