"""Safe terminal output and colours. All text from files, logs or models goes through `printable`."""

from __future__ import annotations

import os
import re
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from npukit.report.language import translated

if TYPE_CHECKING:
    from rich.console import Console

# Control characters except tabs and newlines, characters that reorder or hide text, and lone surrogates.
UNSAFE = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """The text with escape sequences, other control characters and bidirectional overrides made visible.

    A byte of a file name that is not UTF-8 becomes \\\\xNN.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text if text.isascii() and text.isprintable() else UNSAFE.sub(_escaped, text)


def printable_line(text: str) -> str:
    """The same for text within a line, such as a file name: newlines and tabs are made visible, too."""
    return printable(text).replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:  # Python's representation of a byte that is not UTF-8
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def open_closed_streams() -> None:
    """Open /dev/null for closed standard streams, as after `>&-`.

    Otherwise a file that is opened later would get the stream's number, and child processes would write to it.

    >>> open_closed_streams()
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def reader_is_gone() -> bool:
    """Whether the program that read our output through a pipe has ended, as with `| head`.

    >>> reader_is_gone()
    False
    """
    poll = select.poll()
    poll.register(1, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def has_color(stream: TextIO | None = None) -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR or TERM=dumb is set.

    >>> has_color()
    False
    """
    is_terminal = (stream or sys.stdout).isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, color: bool) -> str:
    """The text in a style, given as ANSI codes such as "31;1"; unchanged if colours are off.

    >>> paint("error", "31;1", color=False)
    'error'
    """
    return f"\033[{style}m{text}\033[0m" if color else text


def say(sentence: str) -> None:
    """Print one line in the user's language to stderr, marked as npukit's among other programs' output.

    >>> say("interrupted")
    """
    print(f"npukit: {printable(translated(sentence))}", file=sys.stderr, flush=True)


def console(stream: TextIO | None = None) -> Console:
    """A rich console for tables and progress that shows text literally, without markup."""
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)
