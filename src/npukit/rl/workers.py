"""Separate processes for the user's Python code: one that hangs can be killed, one that prints disturbs nothing, and
one that uses signals has a main thread.

A worker receives an initial message, then requests, each as a pickle, and answers them in order. What it prints goes to
standard error. It ends with its parent, and so do the processes that the user's code has started.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from npukit.children import die_with
from npukit.errors import NpukitError

TO_START = 300.0  # seconds: a plug-in may import torch


class Worker:
    """A process that runs `module`, which calls `serve`. The first request starts it, also after it has died."""

    def __init__(self, module: str, begins_with: Any) -> None:
        self._module, self._begins_with = module, begins_with
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Any:
        """Start it and return its first message; its refusals are raised here."""
        command = [sys.executable, "-m", self._module, str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        try:
            reply = self._exchange(self._begins_with, TO_START)
        except (TimeoutError, EOFError, BrokenPipeError):
            self.close()
            raise NpukitError("The process of the reward functions did not start: its output above says why.") from None
        if isinstance(reply, NpukitError):
            self.close()
            raise reply
        return reply

    def ask(self, request: Any, seconds: float) -> Any:
        """Send a request and return the answer. On TimeoutError or EOFError the process is killed."""
        if self._process is None:
            self.start()
        try:
            return self._exchange(request, seconds)
        except (TimeoutError, EOFError):
            self.close()
            raise
        except BrokenPipeError:
            self.close()
            raise EOFError from None

    def close(self) -> None:
        """End the process, and those that it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _exchange(self, value: Any, seconds: float) -> Any:
        assert self._process and self._process.stdin and self._process.stdout
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError
        return pickle.load(self._process.stdout)


def serve(begin: Callable[[Any], tuple[Any, Callable[[Any], Any]]]) -> None:
    """Run as a worker until there are no more requests. `begin` turns the first message into a reply and a function
    that answers requests; an NpukitError that it raises is sent back.
    """
    _end_together(int(sys.argv[1]))
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # standard input of the user's code
    os.dup2(2, 1)
    sys.path.insert(0, str(Path.cwd()))
    try:
        ready, answer = begin(pickle.load(requests))
    except NpukitError as error:
        return _reply(replies, error)
    _reply(replies, ready)
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        _reply(replies, answer(request))


def _end_together(parent: int) -> None:
    """Let a process watch this group, and kill all of it when the parent or this process is gone."""
    die_with(parent)
    worker = os.getpid()
    if os.fork():
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the parent reads until no process can write any more
    gone = select.poll()
    gone.register(0, 0)  # this can only mean that the parent has closed its end
    while os.getppid() == worker and not gone.poll(1000):
        pass
    os.killpg(0, signal.SIGKILL)


def _reply(replies: BinaryIO, value: Any) -> None:
    pickle.dump(value, replies)
    replies.flush()
