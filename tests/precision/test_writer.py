"""What is written beside a program comes in its order, and its errors reach the program."""

from __future__ import annotations

import threading

import pytest

from npukit.precision.recording.writer import BackgroundWriter


def test_work_is_done_beside_the_program_in_its_order() -> None:
    writer, done, go = BackgroundWriter(), list[str](), threading.Event()

    def late() -> None:
        go.wait(20)
        done.append("beside")

    writer.do(late)
    assert done == []  # the program goes on
    go.set()
    writer.do(lambda: done.append("now"), now=True)
    assert done == ["beside", "now"]
    writer.finish()
    writer.do(lambda: done.append("at the end"))
    assert done[-1] == "at the end"


def test_an_error_is_raised_by_a_later_call() -> None:
    def full() -> None:
        raise OSError("no space left")

    writer = BackgroundWriter()
    writer.do(full)
    with pytest.raises(OSError, match="no space left"):
        writer.finish()
