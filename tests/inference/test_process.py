"""What the process of a batch ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.inference import batch, process
from npukit.inference.batch import Inferred
from npukit.inference.start import UseJob
from npukit.llm.config.use import Use


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_rows_without_an_answer_are_no_success(
    failed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch, "infer", lambda *_: Inferred(Path("answers.jsonl"), 2, failed, 0, 5, 1.0))
    job = UseJob("infer", Use(model={"path": "model"}, data={"input": ["rows.jsonl"]}))
    if not failed:
        process._infer(job)
    else:
        with pytest.raises(NpukitError) as raised:
            process._infer(job)
        assert raised.value.exit_code == 1
    assert f"{2 - failed} of 2 rows answered" in capsys.readouterr().out
