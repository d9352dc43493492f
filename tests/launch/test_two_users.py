"""Another user of the machine, who makes what npukit may want in a shared folder before npukit does."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import yaml

OTHER = 54321  # a user who has nothing
TRAPS = {"npukit", "npukit-0", "npukit_0"}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp: everybody may write, and remove what is their own."""
    if os.getuid() != 0:
        pytest.skip("only root can act as a second user")
    with tempfile.TemporaryDirectory(prefix="shared-") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def attack(shared: Path, outcome: Connection) -> None:
    """As another user: lay traps, then tell of every file that could be changed or replaced."""
    os.setgroups([])
    os.setgid(OTHER)
    os.setuid(OTHER)
    for name in TRAPS:
        (shared / name).mkdir()
        (shared / name).chmod(0o777)
    outcome.send("ready")
    seen = set()
    while not outcome.poll(0.001):
        for folder, _, files in os.walk(shared):
            own = Path(folder).stat().st_uid == OTHER
            seen |= {file for file in files if own or os.access(Path(folder, file), os.W_OK)}
    outcome.send(seen)


def run_beside_attack(shared: Path, cwd: Path, *command: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """What another user could change while a command ran with `shared` as its folder for temporary files."""
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(target=attack, args=(shared, there), daemon=True)
    other.start()
    assert here.recv() == "ready"
    environment = {**os.environ, "TMPDIR": str(shared)}
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    here.send("end")
    return here.recv(), done


def test_the_attack_sees_what_it_could_change(shared: Path, tmp_path: Path) -> None:
    write = f"import time; open('{shared}/npukit-0/config.json', 'w'); time.sleep(1)"
    assert run_beside_attack(shared, tmp_path, sys.executable, "-c", write)[0] == {"config.json"}


def test_a_training_hands_nothing_over_that_another_user_could_change(
    shared: Path, tiny_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}\n' * 4)
    config = {"model": {"path": str(tiny_qwen2)}, "data": {"train": [str(rows)]}, "training": {"output": str(tmp_path)}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "npukit", "train", "--device", "cpu", "--devices", "2", f"{tmp_path}/config.yaml"]
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("raise ImportError('the ranks know their task')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # so that they end before they train
    seen, done = run_beside_attack(shared, tmp_path, *command)
    assert done.returncode == 1 and "the ranks know their task" in done.stderr, done.stderr
    assert seen == set()
    assert {path.name for path in shared.iterdir()} == TRAPS  # and nothing is left behind
