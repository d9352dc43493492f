"""Files that are broken in ways that only reading them shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.reading.read import read


def test_a_zero_byte_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("stage: s\0ft\n")
    with pytest.raises(NpukitError, match=r"recipe\.yaml"):
        read(file, [], {})


@pytest.mark.parametrize("text", ["model: {path: x}\ndata: [1,\n", 'a: 1\nmodel: "x\nb: 2\n'])
def test_what_is_not_closed_is_named_where_it_begins(text: str, tmp_path: Path) -> None:
    (tmp_path / "cut.yaml").write_text(text)
    with pytest.raises(Mistakes) as raised:
        read(tmp_path / "cut.yaml", [], {})
    assert [mistake.place.line for mistake in raised.value.mistakes] == [2]


def test_a_missing_space_does_not_make_a_file_anothers(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("model:\n  path:models/x\n")
    with pytest.raises(Mistakes) as raised:
        read(file, [], {})
    assert [mistake.place.line for mistake in raised.value.mistakes] == [None, 1]
    assert "dataset" not in str(raised.value)  # which is ms-swift's word for data


def test_validation_that_leaves_no_rows_is_found_before_the_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Say a.", "output": "a"}) + "\n")
    words = [f"data.train={rows}", "model.path=owner/name", f"training.output={tmp_path / 'out'}"]
    with pytest.raises(Mistakes) as raised:
        read(None, [*words, "data.validation=1"], {})
    assert [mistake.text for mistake in raised.value.mistakes if "1 of 1 row," in mistake.text]
    read(None, [*words, "data.validation=0.5"], {})
