"""Tokenising goes on after a kill, and its outcome does not show that there was one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npukit.llm.config.options import DataOptions
from npukit.llm.data import parts
from npukit.llm.data.encode import Encoder
from npukit.llm.data.prepare import prepare
from npukit.llm.tasks.task import named


class Killed(BaseException):
    pass


@pytest.mark.parametrize("killed_at", [0, 150, 299])
def test_a_killed_run_is_continued(
    tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    rows = [
        {"instruction": f"What is {number}?", "output": "" if number % 37 == 5 else f"It is {number}."}
        for number in range(310)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(parts, "RECORDS", 100)
    encode, encoded, dies = Encoder.encode, 0, True

    def counting(self: Encoder, some: Any) -> Any:
        nonlocal encoded
        if dies and encoded + len(some) > killed_at:
            raise Killed
        encoded += len(some)
        return encode(self, some)

    def made(cache: str) -> Any:
        monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / cache))
        data = DataOptions(train=[str(tmp_path / "rows.jsonl")], packing=False, preprocessing_workers=1)
        rows: Any = prepare(data, named("sft"), tiny_tokenizer, seed=7).train
        return [rows[number]["input_ids"] for number in range(len(rows))]

    monkeypatch.setattr(Encoder, "encode", counting)
    with pytest.raises(Killed):
        made("killed")
    done_before, encoded, dies = encoded, 0, False
    continued = made("killed")
    assert encoded == 310 - 9 - done_before
    assert not list(tmp_path.glob("killed/data/*/parts")), "what was joined is gone"
    whole = made("whole")
    assert len(continued) == len(whole) == 301
    assert all(np.array_equal(left, right) for left, right in zip(continued, whole, strict=True))
