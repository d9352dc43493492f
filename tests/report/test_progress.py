from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from npukit.report import progress


def test_a_log_gets_a_line_now_and_then_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 11.0, 20.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    sentences: list[str] = []
    on_progress = progress.lines("tokenising", "rows", sentences.append)
    for done, total in ((10, 1000), (100, 1000), (110, 1000), (2000, 0)):
        on_progress(done, total)
    assert sentences == ["tokenising: 100 of 1,000 rows, 1 min 30 s left", "tokenising: 2,000 rows"]


def test_the_first_rows_are_too_few_to_tell_the_time_left_from(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 18.0, 24.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    sentences: list[str] = []
    on_progress = progress.lines("answering", "rows", sentences.append)
    on_progress(8, 60)  # 18 s, in most of which the model was loaded
    on_progress(20, 60)
    assert sentences == ["answering: 8 of 60 rows", "answering: 20 of 60 rows, 20.0 s left"]


def test_who_asked_for_quiet_and_other_ranks_say_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.0)
    with progress.progress("writing", "bytes") as on_progress:
        on_progress(1, 2)
    assert "50%" in capsys.readouterr().err
    for name, value in (("LOCAL_RANK", "1"), ("NPUKIT_VERBOSITY", "quiet")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with progress.progress("writing", "bytes") as on_progress:
                on_progress(1, 2)
    assert capsys.readouterr().err == ""
