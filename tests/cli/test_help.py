"""The way in: what `npukit --help` shows, and how every verb ends when it is called wrongly or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npukit.cli.verbs import VERBS, Verb, load

EVERY = [verb for group in VERBS.values() for verb in group]
LONGEST_SUMMARY = 64  # so that it stays on its line in a terminal of 80 columns


def npukit(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npukit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})


def test_help_lists_the_verbs_by_purpose_each_on_one_line() -> None:
    lines = npukit("--help", COLUMNS="80").stdout.splitlines()
    titles = [line.rstrip(":") for line in lines if line.rstrip(":") in VERBS]
    assert titles == list(VERBS)
    for verb in EVERY:
        assert f"  {verb.name:<{max(len(other.name) for other in EVERY)}}  {load(verb).help.splitlines()[0]}" in lines


@pytest.mark.parametrize("verb", EVERY, ids=lambda verb: verb.name)
def test_a_summary_is_one_whole_sentence(verb: Verb) -> None:
    summary = load(verb).help.splitlines()[0]
    assert len(summary) <= LONGEST_SUMMARY
    assert summary.endswith(".")


@pytest.mark.parametrize("arguments", [["analyze"], ["analyze", "--nonsense", "."], ["nonsense"], ["sim", "nonsense"]])
def test_a_usage_error_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    result = npukit(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("npukit: ")


@pytest.mark.parametrize(
    "arguments",
    [["migrate", ".", "--in-place", "--report", "missing/r.md"], ["migrate", ".", "--output", "{file}"],
     ["analyze", ".", "--report", "{file}/r.html"], ["analyze", ".", "--report", "r.txt"]],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_and_nothing_changes(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("model.cuda()\n")
    command = [sys.executable, "-m", "npukit", *(argument.format(file=file) for argument in arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "model.cuda()\n"


@pytest.mark.parametrize("arguments", [[], ["sim"]])
def test_without_a_verb_help_is_shown(arguments: list[str]) -> None:
    result = npukit(*arguments)
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: npukit")


def test_an_interrupted_verb_says_so_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.txt")
    command = [sys.executable, "-m", "npukit", "explain", str(tmp_path / "log.txt")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with (tmp_path / "log.txt").open("w"):  # returns when the command has opened it to read
        time.sleep(0.3)  # and now it reads
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "npukit: interrupted\n")
