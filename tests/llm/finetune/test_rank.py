"""A rank that is interrupted while it gets ready."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from npukit.llm.config.options import Config
from npukit.llm.finetune import rank


def test_ctrl_c_before_the_first_step_is_a_word_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: Any) -> None:
        raise KeyboardInterrupt

    config = Config.model_validate({"model": {"path": "x"}, "data": {"train": ["y"]}})
    for name, value in rank.handed_over(config).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "npukit.llm.finetune.train", SimpleNamespace(train=interrupted))
    with pytest.raises(SystemExit) as ended:
        rank.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "npukit: interrupted.\n"
