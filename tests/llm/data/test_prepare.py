"""From files to rows: mixing, validation, packing, the cache, problems."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import re
import signal
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions
from npukit.llm.data import encoded, parts
from npukit.llm.data.encode import Encoder
from npukit.llm.data.prepare import Prepared, prepare
from npukit.llm.data.problems import Problems
from npukit.llm.tasks.task import named
from npukit.report.language import translated


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(file: Path, rows: Iterable[Any]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def numbered(name: str, count: int) -> list[dict[str, str]]:
    return [{"instruction": f"{name} {number}?", "output": f"{name}{number}"} for number in range(count)]


def prepared(tokenizer: Any, *train: str | dict[str, Any], log: Any = lambda _: None, **options: Any) -> Prepared:
    sources = [source if isinstance(source, dict) else {"path": source} for source in train]
    data = DataOptions.model_validate({"train": sources, "packing": False, **options})
    return prepare(data, named(options.pop("task", "sft")), tokenizer, seed=7, log=log)


def answers(tokenizer: Any, rows: Any) -> list[str]:
    """What counts of each row."""
    return [tokenizer.decode([token for token in rows[n]["labels"] if token >= 0]) for n in range(len(rows))]


def plain(answers: list[str]) -> list[str]:
    return [answer.removesuffix("<|im_end|>") for answer in answers]


@pytest.fixture
def train_file(tmp_path: Path) -> str:
    return write(tmp_path / "train.jsonl", numbered("a", 20))


def test_rows_are_those_of_the_file(tiny_tokenizer: Any, train_file: str) -> None:
    result = prepared(tiny_tokenizer, train_file)
    assert plain(answers(tiny_tokenizer, result.train)) == [f"a{number}" for number in range(20)]
    assert result.validation is None and result.problems.sentences(64) == []
    row = result.train[0]
    assert tiny_tokenizer.decode(row["input_ids"]) == (
        "<|im_start|>user\na 0?<|im_end|>\n<|im_start|>assistant\na0<|im_end|>\n"
    )


def test_first_rows_alone(tiny_tokenizer: Any, train_file: str) -> None:
    assert len(prepared(tiny_tokenizer, f"{train_file}#3").train) == 3
    assert len(prepared(tiny_tokenizer, f"{train_file}#9", max_rows=5).train) == 5
    assert len(prepared(tiny_tokenizer, f"{train_file}#900").train) == 20


@pytest.mark.parametrize(("share", "count"), [(0.25, 5), (3, 3), (0.001, 1)])
def test_validation_is_apart_and_the_same_again(tiny_tokenizer: Any, train_file: str, share: float, count: int) -> None:
    first, second = (prepared(tiny_tokenizer, train_file, validation=share) for _ in range(2))
    held_out = answers(tiny_tokenizer, first.validation)
    assert len(held_out) == count and held_out == answers(tiny_tokenizer, second.validation)
    assert sorted(held_out + answers(tiny_tokenizer, first.train)) == sorted(
        answers(tiny_tokenizer, prepared(tiny_tokenizer, train_file).train)
    )


def test_validation_from_a_file_of_its_own(tiny_tokenizer: Any, train_file: str, tmp_path: Path) -> None:
    other = write(tmp_path / "val.jsonl", numbered("v", 2))
    result = prepared(tiny_tokenizer, train_file, validation=[{"path": other}])
    assert plain(answers(tiny_tokenizer, result.validation)) == ["v0", "v1"] and len(result.train) == 20


def test_validation_leaves_something_to_train_on(tiny_tokenizer: Any, train_file: str) -> None:
    with pytest.raises(NpukitError, match="takes 20 of 20 rows"):
        prepared(tiny_tokenizer, train_file, validation=20)


def test_tables_are_mixed_by_weight(tiny_tokenizer: Any, train_file: str, tmp_path: Path) -> None:
    """The epoch is as long as both together; the small one is gone through several times, none much more often."""
    small = write(tmp_path / "small.jsonl", numbered("b", 4))
    assert len(prepared(tiny_tokenizer, train_file, small).train) == 24
    sources = [{"path": train_file, "weight": 1}, {"path": small, "weight": 3}]
    mixed = plain(answers(tiny_tokenizer, prepared(tiny_tokenizer, *sources).train))
    assert mixed == plain(answers(tiny_tokenizer, prepared(tiny_tokenizer, *sources).train))
    of_small = [answer for answer in mixed if answer.startswith("b")]
    assert (len(mixed), len(of_small), len(set(mixed) - set(of_small))) == (24, 18, 6)
    assert {of_small.count(f"b{number}") for number in range(4)} == {4, 5}


def test_packed_rows_hold_the_same_labels(tiny_tokenizer: Any, train_file: str) -> None:
    loose = prepared(tiny_tokenizer, train_file).train
    packed = prepared(tiny_tokenizer, train_file, packing=True, cutoff=64, pack_length=128).train
    assert len(packed) < len(loose)
    labels = []
    for number in range(len(packed)):
        row = packed[number]
        assert len(row["input_ids"]) == len(row["labels"]) == sum(row["lengths"]) == 128
        borders = np.cumsum([0, *row["lengths"]])
        for start, end in itertools.pairwise(borders):
            assert row["labels"][start] == -100
            labels.append((row["input_ids"][start:end].tolist(), row["labels"][start:end].tolist()))
    counted = [pair for pair in labels if any(label != -100 for label in pair[1])]
    expected = [(loose[n]["input_ids"].tolist(), loose[n]["labels"].tolist()) for n in range(len(loose))]
    assert sorted(counted) == sorted(expected)


def test_a_pack_shorter_than_the_cutoff_cuts_rows(tiny_tokenizer: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "long.jsonl", [{"instruction": "Hi", "output": "word " * 300}])
    result = prepared(tiny_tokenizer, file, packing=True, pack_length=64)
    assert len(result.train) == 1 and result.problems.cut == 1
    assert "12 tokens" in result.problems.sentences(12)[0]


def test_rows_that_lose_their_answers_are_refused_if_none_is_left(tiny_tokenizer: Any, tmp_path: Path) -> None:
    long = {"instruction": "word " * 60, "output": "Yes"}
    options: dict[str, Any] = {"tokens": "ms_swift", "template": "chatml", "cutoff": 32}
    file = write(tmp_path / "some.jsonl", [long, {"instruction": "a", "output": "b"}])
    some = prepared(tiny_tokenizer, file, **options)
    assert (some.problems.cut, some.problems.unanswered) == (1, 1)
    with pytest.raises(NpukitError, match="none of 2 rows"):
        prepared(tiny_tokenizer, write(tmp_path / "all.jsonl", [long, long]), **options)


def test_a_tokenizer_without_an_end_token_is_told_of(tiny_tokenizer: Any, tmp_path: Path) -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer)
    sentences: list[str] = []
    tokenizer.eos_token = None
    file = write(tmp_path / "rows.jsonl", numbered("a", 2))
    prepared(tokenizer, file, log=sentences.append)
    assert any("end token" in sentence for sentence in sentences)


def test_bad_rows_are_counted_and_named(tiny_tokenizer: Any, tmp_path: Path) -> None:
    rows = [*numbered("a", 3), {"instruction": "x"}, *numbered("b", 2), *[{"instruction": "y", "output": ""}] * 7]
    file = write(tmp_path / "train.jsonl", rows)
    for _ in range(2):  # the second time from the cache
        result = prepared(tiny_tokenizer, file, max_bad_rows=0.7)
        sentences = result.problems.sentences(64)
        assert len(result.train) == 5 and result.problems.bad == 8
        assert "8 of 13 rows" in sentences[0]
        assert f"{file}, line 4 has no output" in sentences[1] and sentences[-1].strip() == "and 3 more"
        with pytest.raises(NpukitError, match="line 4 has no output"):
            prepared(tiny_tokenizer, file, bad_rows="stop")
        for cache in (True, False):
            with pytest.raises(NpukitError, match=r"8 of 13 rows .* line 4 has no output.*max_bad_rows"):
                prepared(tiny_tokenizer, file, cache=cache)


def test_nothing_usable_is_an_error(tiny_tokenizer: Any, tmp_path: Path, own_cache: Path) -> None:
    file = write(tmp_path / "train.jsonl", [{"instruction": "x", "output": None}])
    for cache in (True, False):
        with pytest.raises(NpukitError, match=r"No row of .* can be used: .*line 1 has an empty output"):
            prepared(tiny_tokenizer, file, cache=cache)
    assert not list(own_cache.glob("data/*/rows/*")), "what failed is not kept"


def count_tokenising(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    original = parts._make

    def make(folder: Path, table: Any, *rest: Any) -> Any:
        made.append(table.name)
        return original(folder, table, *rest)

    monkeypatch.setattr(parts, "_make", make)
    return made


def test_the_cache_knows_everything_that_matters(
    tiny_tokenizer: Any, train_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = count_tokenising(monkeypatch)
    other = copy.deepcopy(tiny_tokenizer)
    other.add_tokens(["capital"])
    prepared(tiny_tokenizer, train_file)
    same: list[dict[str, Any]] = [{}, {"validation": 2}, {"packing": True}, {"preprocessing_workers": 1}]
    for options in same:
        tiny_tokenizer(["a", "b c d"], padding=True, truncation=True, max_length=2)  # leaves traces in the tokenizer
        prepared(tiny_tokenizer, train_file, **options)
    assert len(made) == 1
    differing: list[dict[str, Any]] = [
        {"cutoff": 10},
        {"system": "Be brief."},
        {"train_on_prompt": True},
        {"last_answer_only": True},
        {"template": "vicuna"},
        {"max_rows": 5},
        {"task": "pt"},
    ]
    for number, options in enumerate(differing, 2):
        task = options.pop("task", "sft")
        data = DataOptions.model_validate({"train": [{"path": train_file}], "packing": False, **options})
        prepare(data, named(task), tiny_tokenizer, seed=7)
        assert len(made) == number, options
    prepared(other, train_file)
    assert len(made) == len(differing) + 2
    path = Path(train_file)
    before = path.stat()
    path.write_text(path.read_text().replace("a 0?", "b 0?"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "b 0?" in tiny_tokenizer.decode(prepared(tiny_tokenizer, train_file).train[0]["input_ids"])


def test_without_the_cache_nothing_is_written(tiny_tokenizer: Any, train_file: str, own_cache: Path) -> None:
    assert len(prepared(tiny_tokenizer, train_file, cache=False).train) == 20
    assert not own_cache.exists()


@pytest.mark.parametrize("options", [{}, {"packing": True, "pack_length": 256}, {"cache": False}])
def test_rows_travel_to_other_processes(tiny_tokenizer: Any, train_file: str, options: dict[str, Any]) -> None:
    """As a DataLoader's workers get them: by reference to the cache, not as a copy of the tokens."""
    train = prepared(tiny_tokenizer, train_file, **options).train
    sent = pickle.dumps(train)
    arrived = pickle.loads(sent)
    for number in range(len(train)):
        assert arrived[number]["input_ids"].tolist() == train[number]["input_ids"].tolist()


def test_processes_that_come_at_once_tokenise_once(tiny_tokenizer: Any, tmp_path: Path) -> None:
    data = DataOptions.model_validate({"train": [{"path": write(tmp_path / "train.jsonl", numbered("a", 3000))}]})

    def rank(number: int) -> None:
        original, made = parts._make, []
        parts._make = lambda *arguments: (made.append(1), original(*arguments))[1]  # type: ignore[func-returns-value]
        rows = prepare(data, named("sft"), tiny_tokenizer, seed=1).train
        total = int(sum(rows[index]["input_ids"].sum() for index in range(len(rows))))
        (tmp_path / f"rank{number}").write_text(f"{len(made)} {total}")

    processes = [get_context("fork").Process(target=rank, args=(number,)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    sentences = [(tmp_path / f"rank{number}").read_text().split() for number in range(2)]
    assert sorted(made for made, _ in sentences) == ["0", "1"], "one of them made it, the other waited"
    assert sentences[0][1] == sentences[1][1]


def test_text_for_pre_training(tiny_tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    story = "The quick brown fox jumps over the lazy dog.\n" * 40
    (folder / "one.txt").write_text(story)
    (folder / "two.txt").write_text("One plus one is two.")
    data = DataOptions.model_validate({"train": [{"path": str(folder)}], "cutoff": 64, "packing": False})
    rows = prepare(data, named("pt"), tiny_tokenizer, seed=0).train
    whole = tiny_tokenizer.decode(np.concatenate([rows[n]["input_ids"] for n in range(len(rows))]))
    assert whole == f"{story}<|im_end|>One plus one is two.<|im_end|>"
    assert (rows[0]["labels"][1:] == rows[0]["input_ids"][1:]).all()


def test_what_is_told(tiny_tokenizer: Any, train_file: str) -> None:
    sentences: list[str] = []
    bare = copy.deepcopy(tiny_tokenizer)
    bare.chat_template = None
    prepared(bare, train_file, log=sentences.append, packing=True, pack_length=512)
    assert "no chat template" in sentences[0] and "in 1 pack of 512" in sentences[1]
    sentences.clear()
    prepared(tiny_tokenizer, train_file, log=sentences.append, template="llama3")
    assert "<|eot_id|>" in sentences[0] and "split into several tokens" in sentences[0]


def test_several_processes_tokenise_the_same(
    tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded, "BATCH", 16)
    rows = [*numbered("a", 200), {"instruction": "no answer"}, *numbered("b", 50)]
    file = write(tmp_path / "train.jsonl", rows)
    alone, together = (prepared(tiny_tokenizer, file, cache=False, preprocessing_workers=n) for n in (1, 2))
    assert together.problems == alone.problems and len(together.train) == len(alone.train) == 250
    assert answers(tiny_tokenizer, together.train) == answers(tiny_tokenizer, alone.train)


def test_a_process_that_is_killed_is_noticed(
    tiny_tokenizer: Any, train_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, original = os.getpid(), Encoder.encode

    def die(encoder: Encoder, rows: Any) -> Any:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(encoder, rows)

    monkeypatch.setattr(encoded, "BATCH", 2)
    monkeypatch.setattr(Encoder, "encode", die)
    with pytest.raises(NpukitError, match="was killed"):
        prepared(tiny_tokenizer, train_file, preprocessing_workers=2)


def test_what_is_wrong_with_one_row_is_told_in_the_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Problems(rows=1, bad=0, cut=1, unmatched=1, unanswered=1)
    assert not [sentence for sentence in one.sentences(512) if re.search(r"\b1 (rows|answers)\b", sentence)]
    several = Problems(rows=9, bad=2, cut=2, unmatched=2, unanswered=2)
    sentences = [*one.sentences(512), *several.sentences(512)]
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    assert [sentence for sentence in sentences if translated(sentence) == sentence] == []
