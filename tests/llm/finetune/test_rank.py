"""A rank that is interrupted while it gets ready."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npukit.llm.config.options import Config
from npukit.llm.finetune import rank


def test_ctrl_c_before_the_first_step_is_a_word_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: Any) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "config.json"
    file.write_text(Config.model_validate({"model": {"path": "x"}, "data": {"train": ["y"]}}).model_dump_json())
    monkeypatch.setitem(sys.modules, "npukit.llm.finetune.train", SimpleNamespace(train=interrupted))
    monkeypatch.setattr(sys, "argv", ["rank", str(file)])
    with pytest.raises(SystemExit) as ended:
        rank.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "npukit: interrupted.\n"
