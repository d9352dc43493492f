"""Processes on simulated NPUs that begin as copies of one, which has imported torch_npu, transformers and npukit.

A new interpreter needs three to seven seconds of CPU for that, a copy a tenth of one. Here is what computes something;
how processes are started, explained and ended is tested with real ones.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from npukit.simulate import environment

PRELOADED = ("npukit.llm.finetune.train", "npukit.rl.rank", "npukit.inference.process", "peft", "matplotlib.figure")


class Forks:
    """The process that is copied; it starts with the first copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: object, cwd: Path | None = None, given: str = "", **variables: str) -> Fork:
        """Start `npukit …` or `python SCRIPT …` on cards of the usual kind; several ranks are copies too."""
        self._count += 1
        files = [self._folder / f"{self._count}.{name}" for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(given)
        order = {
            "words": list(map(str, arguments)),
            "cwd": str(cwd or Path.cwd()),
            "environment": {**os.environ, **variables},
            "files": list(map(str, files)),
        }
        return Fork(self, self.ask(order), *files[1:])

    def run(self, *arguments: object, **options: Any) -> str:
        """The same to its end, which must be a success; returns what it printed."""
        done = self.start(*arguments, **options).wait()
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def ask(self, order: object) -> int:
        if not self._process:
            command = [sys.executable, "-W", "ignore", "-m", "tests.forks"]
            variables = environment(devices=8)
            variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(Path(__file__).parents[1])])
            self._process = subprocess.Popen(
                command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin and self._process.stdout
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def end(self) -> None:
        if self._process:
            self._process.communicate()


class Fork:
    def __init__(self, forks: Forks, pid: int, stdout: Path, stderr: Path) -> None:
        self.pid = pid
        self._forks, self._stdout, self._stderr = forks, stdout, stderr

    def wait(self) -> subprocess.CompletedProcess[str]:
        code = self._forks.ask(self.pid)
        return subprocess.CompletedProcess([], code, self._stdout.read_text(), self._stderr.read_text())


def main() -> None:
    """Read orders, and fork: the number of a process to wait for, or what to run."""
    from importlib import import_module

    import npukit.launch.run
    from npukit.launch.imports import quicken_imports

    quicken_imports()
    npukit.launch.run.run = _run  # type: ignore[assignment]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if isinstance(order, int):
            answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(order, 0)[1])}\n")
        elif pid := os.fork():
            answers.write(f"{pid}\n")
        else:
            _become(**order)


class Copy(subprocess.Popen[Any]):
    """In the place of Popen: a Python process of npukit's on the CPU begins as a copy of this one.

    >>> mock.patch("subprocess.Popen", Copy)
    """

    def _execute_child(self, args: Any, *rest: Any) -> None:
        variables = dict(rest[5] or os.environ)
        words = [] if isinstance(args, (str, Path)) else list(map(str, args))
        module = words.index("-m") + 1 if "-m" in words[:4] else 0
        is_ours = words[:1] == [sys.executable] and module and words[module].startswith("npukit")
        if not is_ours or "NPUKIT_SIM_DEVICES" in variables:
            return super()._execute_child(args, *rest)
        cwd, fds, is_leader = rest[4], (rest[9], rest[12], rest[14]), rest[20]
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _become_python(words[module:], cwd, variables, fds, is_leader)
        self._child_created = True
        self._close_pipe_fds(*rest[9:15])  # type: ignore[attr-defined]


def _become_python(
    words: list[str], cwd: Any, variables: Mapping[str, str], fds: Sequence[int], is_leader: bool
) -> NoReturn:
    """What `python -m WORDS` is, as far as its code can tell."""
    if is_leader:
        os.setsid()
    for number, fd in enumerate(fds):
        if fd != -1:
            os.dup2(fd, number)
    os.closerange(3, 4096)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _open_standard_streams()
    if cwd:
        os.chdir(cwd)
    _set(variables)
    os.execve = _exec  # type: ignore[assignment]
    sys.argv = words
    _end(lambda: runpy.run_module(words[0], run_name="__main__", alter_sys=True))


def _exec(_path: str, argv: list[str], variables: Mapping[str, str]) -> NoReturn:
    """A process that becomes another one stays a copy."""
    sys.exit(Copy(argv, env=variables).wait())


def _become(words: Sequence[str], cwd: str, environment: Mapping[str, str], files: Sequence[str]) -> NoReturn:
    from npukit.children import die_with
    from npukit.cli import main as npukit
    from npukit.launch.script import main as script

    die_with(os.getppid())
    for number, (file, flags) in enumerate(zip(files, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        os.dup2(os.open(file, flags), number)
    _open_standard_streams()
    os.chdir(cwd)
    _set(environment)
    sys.argv = list(words)
    _end(npukit if words[0] == "npukit" else script)


def _open_standard_streams() -> None:
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, closefd=False)  # noqa: SIM115
        for number, mode in enumerate("rww")
    )


def _set(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _run(command: Sequence[str], environment: Mapping[str, str], ranks: int = 1, auto: bool = False) -> None:
    """What npukit.launch.run.run does, in copies of this process: one a rank, with the variables of torchrun."""
    from npukit.children import die_with
    from npukit.launch import script

    _set(environment)
    sys.argv = ["script", *(["--auto"] if auto else []), *map(str, command)]
    if ranks == 1:
        return script.main()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ.update(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    children = []
    for rank in range(ranks):
        parent = os.getpid()
        if not (pid := os.fork()):
            die_with(parent)
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            _end(script.main)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(next((code for code in codes if code), 0))


def _end(main: Any) -> NoReturn:
    """Run it to its end, and end as Python does, but for the rest of what this process is a copy of."""
    code: Any = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOBase) and not stream.closed:
            stream.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


if __name__ == "__main__":
    main()
