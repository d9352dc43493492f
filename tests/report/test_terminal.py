"""What reaches a terminal cannot steer it."""

from __future__ import annotations

import io
import os

import pytest

from npukit.report.terminal import console, has_color, paint, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 中文, ümläut, 👩‍💻\tand\nlines", None),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J\r\x7f", r"\x9b2J\x0d\x7f"),
        ("user\u202etxt.exe\u2066", r"user\u202etxt.exe\u2066"),
        ("\U000e0041\ufeff\u200b", r"\U000e0041\ufeff\u200b"),
        (os.fsdecode(b"caf\xe9.py"), r"caf\xe9.py"),
        ("\ud83d", r"\ud83d"),
    ],
)
def test_only_what_steers_or_hides_is_escaped(text: str, shown: str | None) -> None:
    assert printable(text) == (shown or text)
    assert printable(printable(text)) == printable(text)
    printable(text).encode()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_color_is_for_terminals_that_want_it(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_color(_Terminal()) is expected
    assert not has_color(io.StringIO())


def test_paint() -> None:
    assert paint("a", "1", color=True) == "\033[1ma\033[0m"
    assert paint("a", "1", color=False) == "a"


def test_a_console_takes_brackets_and_colons_as_text() -> None:
    stream = io.StringIO()
    console(stream).print("[red]x[/red] :smile:")
    assert stream.getvalue() == "[red]x[/red] :smile:\n"
