"""The process that a script becomes, and who watches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npukit.launch import script
from npukit.launch.failure import Failure, first


def test_what_a_script_left_open_is_written_even_if_its_module_is_never_freed(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(
        "import sys\nfrom npukit.launch.script import run_command\nrun_command(sys.argv[1:])\n"
    )
    (tmp_path / "inner.py").write_text(
        "import ctypes, sys\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules['__main__']))\n"
        "log = open('log', 'w')\nlog.write('done')\n"
    )
    command = [sys.executable, "-m", "npukit.launch.script", "-m", "outer", "inner.py"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "log").read_text() == "done"


def test_a_script_that_cannot_be_compiled_is_shown_as_python_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.py").write_text("def f(:\n")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # both are a script's own, and put back
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(script, "begin", lambda _: None)
    with pytest.raises(SyntaxError) as raised:
        script.run_command([str(tmp_path / "script.py")])
    assert script._tell_failure(raised.value) == 1
    assert capsys.readouterr().err.startswith(f'  File "{tmp_path / "script.py"}", line 1')


@pytest.mark.parametrize("start", [["run"], ["run", "--devices", "2"]])
def test_what_the_user_can_mend_is_said_once_by_one_process_or_many(start: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    on_the_way = len(start) > 1
    sentence = f"raise NpukitError('The file is empty: fill it.', on_the_way={on_the_way})"
    script.write_text(f"from npukit.errors import NpukitError\n{sentence}\n")
    command = [sys.executable, "-m", "npukit", *start, "--device", "cpu", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1 if on_the_way else 2, "npukit: The file is empty: fill it.\n")


@pytest.mark.parametrize(("codes", "stopped"), [((143, -15), True), ((143, 1), False), ((-15, -15), False)])
def test_ranks_that_stopped_as_they_were_told_did_not_fail(codes: tuple[int, int], stopped: bool) -> None:
    failures = [Failure(rank, 0, float(rank), code, "") for rank, code in enumerate(codes)]
    assert first(failures).ended_by_signal == stopped


# Not one long sleep: a signal that arrives just before it begins would not end it.
WAIT = "while True:\n    time.sleep(0.05)\n"


def run(folder: Path, code: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(code)
    command = [sys.executable, "-m", "npukit", "run", "--device", "cpu", "script.py"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGKILL, "ran out of memory"), (signal.SIGSEGV, "PYTHONFAULTHANDLER=1")]
)
def test_a_process_that_is_killed_is_explained(number: signal.Signals, expected: str, tmp_path: Path) -> None:
    process = run(tmp_path, f"import os\nos.kill(os.getpid(), {int(number)})\n")
    _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert number.name in errors and expected in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exit_codes_and_signals_pass_through(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({number:d}, lambda *_: (print('saved', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n" + WAIT
    )
    process = run(tmp_path, code)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate() == ("saved\n", "")
    assert process.returncode == 5


BEFORE_THERE_IS_ONE = """
import os, subprocess, sys
from npukit.launch.run import watch
begin = subprocess.Popen
def late(*arguments, **options):
    os.kill(os.getpid(), {number})
    return begin(*arguments, **options)
subprocess.Popen = late
watch([sys.executable, "-c", "import time; time.sleep(3600)"], os.environ)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_there_is_a_process_reaches_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", BEFORE_THERE_IS_ONE.format(number=int(number))]
    assert subprocess.run(command, timeout=60, capture_output=True).returncode == 128 + number


@pytest.mark.parametrize(
    ("command", "imported"),
    [(["-m", "npukit", "doctor"], "typer"), (["-m", "npukit.launch.agent", "script.py"], "torch")],
)
def test_ctrl_c_during_imports_is_no_error(command: list[str], imported: str, tmp_path: Path) -> None:
    (tmp_path / f"{imported}.py").write_text("import time\nprint('importing', flush=True)\n" + WAIT)
    process = subprocess.Popen(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "")
    assert process.returncode == 128 + signal.SIGINT


def test_the_process_dies_with_its_watcher(tmp_path: Path) -> None:
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(3600)\n"
    process = run(tmp_path, code)
    assert process.stdout is not None
    script = Path("/proc") / process.stdout.readline().strip()
    assert script.exists()
    process.kill()
    process.wait()
    while script.exists():
        time.sleep(0.05)


@pytest.mark.parametrize(("module", "stderr"), [("npukit.llm.finetune.rank", "npukit: interrupted\n"), ("mine", None)])
def test_ctrl_c_is_one_line_in_npukit_s_own_modules(
    module: str, stderr: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "run_command", interrupt)
    monkeypatch.setattr("npukit.quiet.install", lambda own: None)
    monkeypatch.setattr(sys, "argv", ["script", "-m", module])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(SystemExit if stderr else KeyboardInterrupt) as ended:
        script.main()
    if stderr:
        assert isinstance(ended.value, SystemExit) and ended.value.code == 130
        assert capsys.readouterr().err == stderr


PRINTS = "import itertools\nfor number in itertools.count():\n    print(number)\n"
OURS = f"""
import sys
from npukit.launch import script
script.run_command = lambda arguments: exec({PRINTS!r})
sys.argv = ["script", "-m", "npukit.train"]
script.main()
"""


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_where_the_reader_of_the_output_has_ended_there_is_nothing_to_explain(whose: str, tmp_path: Path) -> None:
    """As with `npukit train … | head`: npukit ends silently, a script with its own traceback."""
    (tmp_path / "script.py").write_text(PRINTS)
    command = [sys.executable, *(["-c", OURS] if whose == "ours" else ["-m", "npukit.launch.script", "script.py"])]
    writer = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stderr is not None
    assert writer.stdout.readline() == "0\n"
    writer.stdout.close()
    errors = writer.stderr.read().split("Exception ignored")[0].splitlines()
    assert writer.wait() in (1, 120)
    assert errors[-1:] == ([] if whose == "ours" else ["BrokenPipeError: [Errno 32] Broken pipe"])
