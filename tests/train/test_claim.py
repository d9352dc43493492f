"""One run at a time in an output folder, also of those that start in the same moment."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.train.claim import claim

FORK = get_context("fork")
AT_ONCE = 6


def train_at_once(job: Any, starting: Any, ended: Any) -> None:
    trainer = job(max_steps=8, save_every=1, log_every=1)
    starting.wait()
    try:
        ended.put(trainer.train().steps)
    except NpukitError:
        ended.put(0)
    except BaseException as error:
        ended.put(repr(error))


def test_of_runs_that_start_at_once_one_trains_undisturbed(job: Any) -> None:
    starting, ended = FORK.Barrier(2), FORK.Queue()
    runs = [FORK.Process(target=train_at_once, args=(job, starting, ended)) for _ in range(2)]
    for run in runs:
        run.start()
    results = [ended.get(timeout=120) for _ in runs]
    for run in runs:
        run.join()
    # A second run that came when the first was done finds all steps done.
    assert 8 in results and set(results) <= {0, 8}
    steps = [json.loads(line)["step"] for line in (job.output / "log.jsonl").read_text().splitlines() if "loss" in line]
    assert steps == list(range(1, 9))


def claim_at_once(folder: Path, starting: Any, tried: Any, claimed: Any) -> None:
    starting.wait()
    try:
        with claim(folder):
            claimed.put(os.getpid())
            tried.wait()
    except NpukitError:
        tried.wait()


def without_locks(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    starting, tried, claimed = FORK.Barrier(AT_ONCE), FORK.Barrier(AT_ONCE), FORK.SimpleQueue()
    arguments = (tmp_path / "a" / "output", starting, tried, claimed)
    runs = [FORK.Process(target=claim_at_once, args=arguments) for _ in range(AT_ONCE)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    claimed.get()
    assert claimed.empty()


@pytest.mark.parametrize("locks", [True, False])
def test_a_claim_holds_inside_itself_and_ends(tmp_path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not locks:
        monkeypatch.setattr(fcntl, "lockf", without_locks)

    def others_are_refused() -> bool:
        refused, at_once = FORK.SimpleQueue(), FORK.Barrier(1)
        other = FORK.Process(target=claim_at_once, args=(tmp_path, at_once, at_once, refused))
        other.start()
        other.join()
        return refused.empty()

    with claim(tmp_path):
        with claim(tmp_path):
            assert others_are_refused()
        assert others_are_refused(), "the inner end is not the outer one"
    assert not others_are_refused()


def test_without_locks_a_run_that_is_gone_or_elsewhere_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "lockf", without_locks)
    gone = FORK.Process(target=os.getpid)
    gone.start()
    gone.join()
    dead, elsewhere = {"host": socket.gethostname(), "process": gone.pid}, {"host": "another", "process": 1}
    for written in ("", "no json", json.dumps(dead), json.dumps(elsewhere)):
        (tmp_path / ".lock").write_text(written)
        with claim(tmp_path):
            pass
