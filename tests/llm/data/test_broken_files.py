"""Data that cannot be used: each file gives one sentence that says where and why, before anything heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.check import check_files
from npukit.llm.tasks.task import named

GOOD = {"instruction": "Say hello", "output": "Hello"}


def turns(*roles: str) -> str:
    return json.dumps({"messages": [{"role": role, "content": "words"} for role in roles]})


BROKEN: dict[str, tuple[str, bytes | str, str]] = {
    "empty": ("train.json", "", "is empty"),
    "no rows": ("train.json", "[]", "has no rows"),
    "not JSON": ("train.json", "hello there", "line 1: this is not JSON"),
    "array cut in the middle": ("train.json", json.dumps([GOOD, GOOD], indent=1)[:-30], "after 1 whole rows"),
    "comma missing": ("train.json", '[{"a": 1}\n{"a": 2}]', "line 2: a comma is missing"),
    "lines that are not JSON": ("train.jsonl", "instruction: hello\n", "line 1 is not JSON"),
    "line cut in the middle": ("train.jsonl", json.dumps(GOOD)[:-4], "seems to be cut here"),
    "another encoding": ("train.jsonl", json.dumps({"text": "中文"}, ensure_ascii=False).encode("gbk"), "not UTF-8"),
    "UTF-16": ("train.json", json.dumps([GOOD]).encode("utf-16"), "is UTF-16"),
    "binary": ("train.jsonl", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is binary"),
    "compressed": ("train.json", b"\x1f\x8b\x08\0\0\0", "is compressed"),
    "Git LFS pointer": ("train.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    "web page": ("train.json", "<!DOCTYPE html><html>404</html>", "is a web page"),
    "wrong columns": ("train.csv", "frage,antwort\nHallo,Hi\n", "its columns (frage, antwort)"),
    "CSV of another encoding": (
        "train.csv",
        "问题,output\nx,y\n".encode("gbk"),
        "line 1 is not UTF-8: convert it",
    ),
    "half a character": ("train.jsonl", '{"instruction": "a", "output": "\\ud83d"}', "half of a surrogate pair"),
    "fields missing": ("train.csv", "instruction,output\nHello\n", "line 2 has 1 fields, but the header has 2"),
    "broken Parquet": ("train.parquet", b"PAR1 and then nothing", "broken Parquet"),
    "not Parquet": ("train.parquet", json.dumps([GOOD]), "not a Parquet file"),
    "NaN for an answer": ("train.json", '[{"instruction": "a", "output": NaN}]', "empty output (NaN)"),
    "null for an answer": ("train.jsonl", '{"instruction": "a", "output": null}', "empty output (null)"),
    "list for an answer": ("train.jsonl", '{"instruction": "a", "output": ["b"]}', "a list as output"),
    "empty conversation": ("train.jsonl", '{"messages": []}', "empty conversation"),
    "null for a conversation": ("train.jsonl", '{"messages": null}', "has null instead of a list"),
    "roles in the wrong order": ("train.jsonl", turns("user", "user", "assistant"), "turn 2 is user, not assistant"),
    "no assistant turn": ("train.jsonl", turns("system", "user"), "no assistant turn"),
    "question without an answer": ("train.jsonl", turns("user", "assistant", "user"), "has no answer"),
    "unknown role": ("train.jsonl", turns("narrator", "assistant"), "the role 'narrator' in turn 1"),
    "a result without a call": ("train.jsonl", turns("user", "observation", "assistant"), "turn 2 is result"),
    "images": (
        "train.jsonl",
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "x"}]}',
        "and 1 parts for them",
    ),
    "unknown suffix": ("train.xlsx", b"PK\x03\x04", ".json, .jsonl"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_gives_one_sentence(case: str, tmp_path: Path) -> None:
    name, content, expected = BROKEN[case]
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (sentence,) = check_files(DataOptions(train=(Source(path=str(file)),)), named("sft"))
    assert expected in sentence and str(file) in sentence
    assert "\n" not in sentence and sentence.endswith(".")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/alpaca.json", "did you mean data/alpaca_en.json?"),
        ("alpaca_em", "did you mean alpaca_en?"),
        ("empty", "contains no .json"),
        ("lost", "its file data/lost.json does not exist"),
        ("pairs", "it has no file_name"),
        ("data/alpaca_en.json#0", "at least 1"),
    ],
)
def test_a_wrong_name_gives_one_sentence(
    path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "data/alpaca_en.json").write_text(json.dumps([GOOD]))
    info = {
        "alpaca_en": {"file_name": "alpaca_en.json"},
        "lost": {"file_name": "lost.json"},
        "pairs": {"ranking": True},
    }
    (tmp_path / "data/dataset_info.json").write_text(json.dumps(info))
    (sentence,) = check_files(DataOptions(train=(Source(path=path),)), named("sft"))
    assert expected in sentence


def test_bad_rows_among_good_ones_are_wrong_only_where_asked(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n{}\r\n" + json.dumps(GOOD).encode())
    sources = (Source(path=str(file)),)
    assert check_files(DataOptions(train=sources), named("sft")) == []
    (sentence,) = check_files(DataOptions(train=sources, bad_rows="stop"), named("sft"))
    assert f"{file}, line 3 has no instruction and output" in sentence


def test_text_cannot_teach_answers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Once upon a time.")
    data = DataOptions(train=(Source(path=str(tmp_path)),))
    assert check_files(data, named("pt")) == []
    (sentence,) = check_files(data, named("sft"))
    assert "task: pt" in sentence


def test_looking_at_files_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([GOOD]))
    code = f"""
import sys
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.check import check_files
from npukit.llm.tasks.task import named
assert check_files(DataOptions(train=(Source(path={str(tmp_path)!r}),)), named("sft")) == []
print([name for name in ("torch", "transformers", "datasets", "numpy", "pyarrow") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_a_column_that_no_task_reads_but_a_reward_function_may() -> None:
    data = DataOptions(train=(Source(path="imdb", columns={"instructon": "x"}),))
    assert "'instructon'; did you mean instruction?" in check_files(data, named("sft"))[0]
    assert check_files(data, named("grpo")) == []
