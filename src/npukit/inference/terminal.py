"""A conversation on the terminal: a line editor, commands, streamed answers, Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.chat import Conversation
from npukit.llm.chat.answer import Reasoning, ToolCall
from npukit.report.report import counted
from npukit.report.terminal import has_color, paint, printable, say

HELP = """\
/clear           forget the conversation
/system TEXT     set the system message, or remove it, and forget the conversation
/image FILE      attach an image to the next question (vision-language models)
/retry           answer the last question again
/set NAME=VALUE  change a setting, such as temperature=0.7; without one, show them
/multi           type several lines; a line with only # ends them
/save FILE       save the conversation
/load FILE       go on with a saved one
/exit            leave; Ctrl-D does the same
Ctrl-C stops an answer."""
# Commands of LLaMA-Factory and ms-swift.
OTHER_WORDS = {"clear": "/clear", "exit": "/exit", "quit": "/exit", "multi-line": "/multi", "reset-system": "/system"}
DIM = "2"


def talk(conversation: Conversation, greeting: str) -> None:
    """Run the conversation until the user leaves."""
    _Terminal(conversation, greeting).run()


class _Terminal:
    def __init__(self, conversation: Conversation, greeting: str) -> None:
        self._talk = conversation
        self._greeting = greeting
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._color = has_color()
        self._stopped = False
        if self._is_terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - input() edits lines and keeps a history with it

    def run(self) -> None:
        if self._is_terminal:
            print(f"{self._greeting}\n/help lists the commands.")
        while (line := self._read("User: ")) is not None:
            line = OTHER_WORDS.get(line.strip(), line.strip())
            try:
                if line == "/exit":
                    return
                if line.startswith("/"):
                    self._command(*line[1:].partition(" ")[::2])
                elif line:
                    self._answer(line)
            except NpukitError as error:
                say(str(error))

    def _read(self, prompt: str) -> str | None:
        """The next line; None at the end of the input. Ctrl-C discards it."""
        while True:
            try:
                return input(prompt if self._is_terminal else "")
            except EOFError:
                return None
            except KeyboardInterrupt:
                print("\nType /exit or press Ctrl-D to leave.")

    def _command(self, name: str, rest: str) -> None:
        rest = rest.strip()
        if name == "clear":
            self._talk.clear()
            print("The conversation is forgotten.")
        elif name == "system":
            self._talk.system = rest or self._ask_system()
            self._talk.clear()
            print("The system message is set." if self._talk.system else "The system message was removed.")
        elif name == "image":
            self._talk.show(_file(rest, "/image cat.png"))
            print(f"Shown with the next question: {', '.join(self._talk.shown)}.")
        elif name == "retry":
            self._answer(self._talk.take_back())
        elif name == "set":
            self._set(rest)
        elif name == "multi":
            self._answer(self._read_lines())
        elif name == "save":
            self._talk.save(_file(rest))
            print(f"Saved to {rest}.")
        elif name == "load":
            self._talk.load(_file(rest))
            print(f"Loaded {len(self._talk.messages)} messages from {rest}.")
        elif name == "help":
            print(HELP)
        else:
            raise NpukitError(f"There is no command /{name}: /help lists them.")

    def _ask_system(self) -> str | None:
        return (self._read("System: ") or "").strip() or None if self._is_terminal else None

    def _set(self, rest: str) -> None:
        for word in rest.split():
            name, _, value = word.partition("=")
            self._talk.set(name, value)
        sampling = self._talk.sampling
        names = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "seed")
        print(", ".join(f"{name}={getattr(sampling, name)}" for name in names))

    def _read_lines(self) -> str:
        lines: list[str] = []
        while (line := self._read("... ")) is not None and line.strip() != "#":
            lines.append(line)
        return "\n".join(lines)

    def _answer(self, question: str) -> None:
        if self._is_terminal:
            print("Assistant: ", end="", flush=True)
        with self._stop_on_interrupt():
            for part in self._talk.answer(question, lambda: self._stopped):
                shown = f"[{part.name}({part.arguments})]" if isinstance(part, ToolCall) else part.text
                dim = isinstance(part, Reasoning)
                print(paint(printable(shown), DIM, self._color) if dim else printable(shown), end="", flush=True)
        print()
        if self._is_terminal and (figures := self._talk.figures):
            ended = {"length": ", cut at the limit", "cancelled": ", stopped"}.get(figures.finish_reason, "")
            tokens = counted(figures.tokens, "token")
            speed = f"{tokens}, {figures.per_second:.1f} a second, the first after {figures.first:.2f} s"
            print(paint(f"({speed}{ended})", DIM, self._color))

    @contextlib.contextmanager
    def _stop_on_interrupt(self) -> Iterator[None]:
        """On Ctrl-C, finish the running step, so that the engine stays consistent."""
        self._stopped = False

        def stop(*_: Any) -> None:
            self._stopped = True

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _file(name: str, example: str = "/save talk.json") -> Path:
    if not name:
        raise NpukitError(f"Which file? For example: {example}")
    return Path(name).expanduser()
