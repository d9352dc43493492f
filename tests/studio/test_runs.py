"""Runs on disk: found again, told apart when they were killed, queued by free cards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.machine.status import DeviceStatus, MachineStatus
from npukit.studio.curves import POINTS, Logs, between, tail
from npukit.studio.queue import SIMULATED_CARDS, Queue, free_cards
from npukit.studio.runs import Run, Runs, State
from npukit.studio.wrapper import EXIT, PROCESS, RECORD, write

# Not one long sleep: a signal that arrives just before it begins would not end it.
SLEEPS = """import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print('on')
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / ".npukit" / "studio")
    yield made
    for run in made:
        if run.state in (State.running, State.stopping):
            run.signal(now=True)


def add(runs: Runs, code: str, **more: object) -> Run:
    """A queued run of a small program in place of a verb."""
    run = runs.add("train", [], runs.folder.parents[2], **more)
    record = json.loads((run.folder / RECORD).read_text())
    write(run.folder / RECORD, record | {"argv": [sys.executable, "-c", code]})
    return run


def until(run: Run, *states: State) -> None:
    while run.state not in states:
        time.sleep(0.02)


def process(run: Run) -> int:
    while not (run.folder / PROCESS).exists():
        time.sleep(0.02)
    return int(json.loads((run.folder / PROCESS).read_text())["pid"])


def test_a_run_ends_with_its_code_and_its_log(runs: Runs) -> None:
    good, bad = add(runs, "print('all well')"), add(runs, "raise SystemExit(3)")
    assert good.state is State.queued
    Queue(runs).tick()
    until(good, State.finished)
    until(bad, State.failed)
    assert "all well" in (good.folder / "output.log").read_text()
    assert bad.exit and bad.exit.code == 3
    again = Runs(runs.folder.parent)  # as a server that is started anew sees it
    assert [run.state for run in again] == [State.finished, State.failed]


@pytest.mark.parametrize("content", ["{broken", "[1]", '{"code": "x", "pid": "z", "argv": null}', "\0\udcff"])
def test_a_run_whose_files_are_broken_does_not_stand_in_the_way(runs: Runs, content: str) -> None:
    data = content.encode(errors="surrogateescape")
    broken, ended, started, good = (add(runs, "pass") for _ in range(4))
    (broken.folder / RECORD).write_bytes(data)
    (ended.folder / EXIT).write_bytes(data)
    (started.folder / "started").touch()
    (started.folder / PROCESS).write_bytes(data)
    Queue(runs).tick()
    until(good, State.finished)
    assert [run.folder for run in runs] == [run.folder for run in (ended, started, good)]
    os.utime(started.folder / "started", (0, 0))  # long ago
    assert started.seconds is None and started.state is State.killed
    with pytest.raises(NpukitError):
        runs.find(broken.folder.name)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_folder_that_cannot_be_written_is_one_sentence() -> None:
    with pytest.raises(NpukitError, match="Cannot write"):
        Runs(Path("/proc/.npukit/studio"))


def test_a_check_that_found_something_has_not_failed(runs: Runs) -> None:
    says = "import json; print(json.dumps({})); raise SystemExit(1)"
    run = add(runs, says.format({"result": {"same": False}}), has_result=True)
    broke = add(runs, says.format({"result": None, "error": {"message": "no"}}), has_result=True)
    Queue(runs).tick()
    until(run, State.finished)
    until(broke, State.failed)


def test_a_killed_run_is_killed_and_not_running(runs: Runs) -> None:
    run = add(runs, SLEEPS)
    Queue(runs).tick()
    until(run, State.running)
    os.killpg(process(run), signal.SIGKILL)
    until(run, State.killed)
    run.again()
    assert run.state is State.queued


def test_a_number_that_another_process_has_now_is_not_the_run(runs: Runs) -> None:
    run = add(runs, "pass")
    (run.folder / "started").touch()
    write(run.folder / PROCESS, {"pid": os.getpid(), "birth": "1@another", "began": 0})
    assert run.state is State.killed


def test_stopping_asks_the_process_which_ends_by_itself(runs: Runs) -> None:
    run = add(runs, SLEEPS)
    Queue(runs).tick()
    until(run, State.running)
    while "on" not in (run.folder / "output.log").read_text():
        time.sleep(0.02)
    run.signal(now=False)
    until(run, State.stopped)
    assert run.exit and run.exit.code == 143
    with pytest.raises(NpukitError):
        run.signal(now=False)


def test_a_run_outlives_the_process_that_started_it(runs: Runs) -> None:
    run = add(runs, SLEEPS)
    code = (
        "import os, sys; from pathlib import Path; from npukit.studio.queue import Queue;"
        "from npukit.studio.runs import Runs; Queue(Runs(Path(sys.argv[1]))).tick(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, runs.folder.parent]).returncode == -signal.SIGKILL
    process(run)
    assert run.state is State.running


def test_runs_wait_for_cards_in_their_order(runs: Runs) -> None:
    first = add(runs, SLEEPS, device="sim", cards=SIMULATED_CARDS - 1)
    second = add(runs, SLEEPS, device="sim", cards=2)
    third = add(runs, SLEEPS, device="sim", cards=1)
    other = add(runs, SLEEPS)
    queue = Queue(runs)
    queue.tick()
    states = [run.state for run in (first, second, third, other)]
    assert states == [State.running, State.queued, State.queued, State.running], "a later one does not pass by"
    first.signal(now=True)
    until(first, State.stopped, State.killed)
    queue.tick()
    assert second.state is third.state is State.running
    assert second.record.numbers == (0, 1) and third.record.numbers == (2,)
    with pytest.raises(NpukitError):
        second.delete()


def test_cards_that_others_use_are_not_free(runs: Runs) -> None:
    status = MachineStatus("npu", (DeviceStatus(0, "910B3", processes=("python",)), *map(_idle, (1, 2))))
    record = replace(add(runs, "pass", device="npu", cards=2).record, device="npu")
    assert free_cards(record, [], status) == (1, 2)
    assert free_cards(record, [replace(record, numbers=(1,))], status) is None


def _idle(number: int) -> DeviceStatus:
    return DeviceStatus(number, "910B3")


def test_a_long_curve_is_thinned_and_keeps_its_spike(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": step, "loss": 1.0, "memory_gib": 2.0, "note_of_nobody": "x" * 40} for step in range(1, 50_001)]
    rows[31_337]["loss"] = 9.0
    rows.insert(40_000, {"step": 40_000, "eval_loss": 0.5})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    log.write_text(text)
    logs = Logs()
    sampled = logs.figures(log).curves["loss"].pairs()  # at once, before all of it is read
    assert len(sampled[0]) > 100 and sampled[0][-1] == 50_000
    while not logs.figures(log).was_read:
        time.sleep(0.01)
    steps, values = logs.figures(log).curves["loss"].pairs()
    assert len(steps) <= 2 * POINTS + 1 and steps == sorted(steps) and steps[-1] == 50_000
    assert max(values) == 9.0 and steps[values.index(9.0)] == 31_338
    assert logs.figures(log).curves["eval_loss"].pairs() == ([40_000], [0.5])

    near = between(log, 31_330, 31_345).curves["loss"].pairs()  # zoomed in: every step
    assert near[0] == list(range(31_330, 31_346)) and near[1][8] == 9.0
    assert between(log, 40_000, 40_000).curves.keys() == {"loss", "memory_gib", "eval_loss"}
    wide = between(log, 1, 50_000).curves["loss"].pairs()
    assert len(wide[0]) <= 2 * POINTS + 1 and max(wide[1]) == 9.0
    assert between(log, 60_000, 70_000).curves == {}

    with log.open("a") as more:  # it goes on, with a line that is not whole yet
        more.write('{"step": 50001, "loss": 0.25}\n{"step": 50002, "lo')
    assert logs.figures(log).curves["loss"].last == (50_001, 0.25)
    assert tail(log)["step"] == 50_001
    log.unlink()
    log.write_text('{"step": 1, "loss": "NaN"}\nnot json\n{"step": 2, "loss": 3.5}\n')  # begun anew
    assert logs.figures(log).curves["loss"].pairs() == ([2], [3.5])
