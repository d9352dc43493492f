from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npukit import __version__
from npukit.cli import main


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["sim", "--help"]])
def test_help_and_version_import_no_torch(arguments: list[str]) -> None:
    code = f"""
import atexit, sys
from npukit.cli import main
atexit.register(lambda: print("HEAVY:", [m for m in ("torch", "torch_npu", "numpy", "yaml") if m in sys.modules]))
sys.argv = ["npukit", *{arguments}]
main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "HEAVY: []" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [(["-h"], ["--help"]), (["help"], ["--help"]), (["migrate", "-h"], ["migrate", "--help"]),
     (["help", "migrate"], ["migrate", "--help"]), (["sim", "help", "env"], ["sim", "env", "--help"])],
)  # fmt: skip
def test_help_comes_by_the_words_that_people_try(arguments: list[str], wanted: list[str], npukit: Any) -> None:
    assert npukit(*arguments).stdout == npukit(*wanted).stdout != ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["version"], "did you mean --version?"), (["migrate"], "Missing argument 'PATH'."),
     (["verify", "a"], "Missing argument 'AFTER'."), (["docs", "finetune"], "did you mean fine-tune?"),
     (["plan", "Qwen/Qwen2.5-7B"], "name a YAML file, such as `npukit init` writes."),
     (["verify", __file__, ".", "--", "python", "a.py"], "is a file: give the folder of the project"),
     (["docs", "NPK110"], "`npukit explain NPK110` explains it."),
     (["docs", "overflow"], "`npukit docs --search overflow` finds it in others."),
     (["docs", "xyzzy"], "`npukit docs` lists them all.")],
)  # fmt: skip
def test_a_wrong_word_is_answered_with_the_way_on(arguments: list[str], says: str, npukit: Any) -> None:
    assert says in npukit(*arguments).stderr


def test_an_unknown_error_is_answered_in_chinese(npukit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    for log in ("blah", "x\nFooError: quux zork\n"):
        first = npukit("explain", text=log).stdout.splitlines()[0]
        assert first.startswith("npukit 不认识这里的任何错误。") and "error" not in first


def test_version(npukit: Any) -> None:
    first, *others = npukit("--version").stdout.splitlines()
    assert first == f"npukit {__version__}"
    names = [line.split()[0] for line in others]
    assert names == ["Python", "platform", "torch", "torch_npu", "CANN", "driver", "cards"]


def test_a_report_has_what_a_bug_report_needs_and_no_secrets(
    npukit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPUKIT_API_KEY", "a-secret-that-nobody-sees")
    monkeypatch.setenv("HCCL_IF_BASE_PORT", "60000")
    log = tmp_path / "train.log"
    log.write_text("a-secret-that-nobody-sees\n" * 300 + f"EI0002 in {tmp_path}/model.py\n")
    result = npukit("report", "--log", log, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "npukit-report.json").read_text()
    assert "a-secret" not in text and str(tmp_path) not in text
    report = json.loads(text)["result"]
    assert report["versions"]["npukit"] == __version__ and report["doctor"]["checks"]
    assert report["environment"]["HCCL_IF_BASE_PORT"] == "60000" and "NPUKIT_API_KEY" in report["environment"]
    assert len(report["log"]) == 200 and report["explanations"][0]["code"] == "EI0002"
    assert npukit("report", "--log", tmp_path / "none.log", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--device", "sim", "--card", "910B33", __file__], "did you mean 910B3?"),
        (["run", "--device", "sim", "nowhere.py"], "There is no script nowhere.py"),
        (["run", "--crad", "910B3", __file__], "There is no option --crad"),
        (["run", "--device", "cpu", "--card", "910B1", __file__], "add --device sim"),
        (["run", "-m"], "Name a module after -m"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence_and_exit_code_2(
    npukit: Any, arguments: list[str], sentence: str
) -> None:
    result = npukit(*arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_bug_keeps_its_traceback() -> None:
    code = """
import sys
from npukit import cli
from npukit.launch import devices
devices.choose = lambda *wanted: 1 / 0
sys.argv = ["npukit", "run", "-m", "module"]
cli.main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr


@pytest.mark.parametrize(("system", "verb"), [("win32", "train"), ("darwin", "run")])
def test_other_systems_get_a_sentence(
    system: str, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "argv", ["npukit", verb, "x.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "needs Linux" in error and error.count("\n") == 1


def test_a_folder_that_was_deleted_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "argv", ["npukit", "analyze", "."])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_verbose_shows_the_traceback_and_quiet_only_the_sentence() -> None:
    for flag, shown in (("-v", True), ("-q", False)):
        command = [sys.executable, "-m", "npukit", flag, "explain", "none.log"]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 2 and ("Traceback" in ended.stderr) == shown


def test_completion_knows_the_verbs_and_their_options() -> None:
    for words, expected in (("npukit tra", "train"), ("npukit train --dry", "--dry-run")):
        environ = {**os.environ, "_NPUKIT_COMPLETE": "complete_bash", "COMP_WORDS": words}
        environ["COMP_CWORD"] = str(words.count(" "))
        completed = subprocess.run([sys.executable, "-m", "npukit"], capture_output=True, text=True, env=environ)
        assert expected in completed.stdout.split()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_left_alone(closed: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(2).cuda()\n")
    command = f"{sys.executable} -m npukit migrate train.py --output new.py {closed}"
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "cuda" not in (tmp_path / "new.py").read_text()
