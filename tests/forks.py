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


def watch(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """What npukit.launch.run.watch does, with a copy of this process, for what runs on the CPU."""
    from npukit.launch import script

    assert environment["NPUKIT_DEVICE"] == "cpu" and argv[1:3] == ["-m", "npukit.launch.script"], argv
    sys.stdout.flush()
    if not (pid := os.fork()):
        _set(environment)
        sys.argv = ["script", *argv[3:]]
        _end(script.main)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)


def _become(words: Sequence[str], cwd: str, environment: Mapping[str, str], files: Sequence[str]) -> NoReturn:
    from npukit.children import die_with
    from npukit.cli import main as npukit
    from npukit.launch.script import main as script

    die_with(os.getppid())
    for number, (file, flags) in enumerate(zip(files, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        os.dup2(os.open(file, flags), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(cwd)
    _set(environment)
    sys.argv = list(words)
    _end(npukit if words[0] == "npukit" else script)


def _set(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _run(command: Sequence[str], environment: Mapping[str, str], ranks: int = 1, auto: bool = False) -> None:
    """What npukit.launch.run.run does, in copies of this process: one a rank, with the variables of torchrun."""
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
        if not (pid := os.fork()):
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            _end(script.main)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(next((code for code in codes if code), 0))


def _end(main: Any) -> NoReturn:
    """Run it to its end, and end as Python does, but for the rest of what this process is a copy of."""
    code: Any = 1
    try:
        code = main()
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
