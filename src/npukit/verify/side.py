"""Runs one of the two projects and collects the figures that it printed or that were observed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.launch.commands import python_arguments
from npukit.launch.devices import Devices, Wanted, choose, count_gpus
from npukit.launch.run import AGENT, own_first, spare_launcher, tied
from npukit.machine import Machine
from npukit.precision.recording.hook import recording
from npukit.precision.recording.options import RecordOptions
from npukit.verify.figure import Figure, by_name
from npukit.verify.logs import losses_written, state_of
from npukit.verify.losses import losses_in
from npukit.verify.result import Kind, RunResult
from npukit.verify.started import observed

MAX_ROWS = 50_000  # of operators and modules that are recorded to find the cause
_TAIL = 30
_MAIN = "MainProcess"  # multiprocessing's name
_TELLS: Mapping[Kind, str] = {
    "backward": "backward() is called on {value:.9g}",
    "outputs": "a module returns tensors of norm {value:.9g}",
    "gradients": "gradients of norm {value:.9g}",
    "weights": "weights of norm {value:.9g}",
    "settings": "{name} = {value:.9g}",
}


@dataclass(frozen=True)
class Side:
    """One of the two projects and the way to run it."""

    folder: Path
    device: str
    environment: Mapping[str, str]
    cuda_is_cpu: bool = False
    simulated: bool = False

    @classmethod
    def original(cls, folder: Path) -> Side:
        """On CUDA, or on the CPU in place of it."""
        if count_gpus(Machine()):
            return cls(folder, "CUDA", choose(Wanted.cuda).environment())
        environment = choose(Wanted.cpu).environment()
        environment.pop("CUDA_VISIBLE_DEVICES")  # a script that finds it assumes CUDA
        return cls(folder, "the CPU in place of CUDA", environment, cuda_is_cpu=True)

    @classmethod
    def migrated(cls, folder: Path, devices: Devices, trace: Path) -> Side:
        return cls(folder, str(devices), devices.environment(trace=trace), simulated=devices.simulated)

    def run(
        self, command: Sequence[str], devices: int, work: Path, record: Path | None = None
    ) -> tuple[RunResult, dict[tuple[Kind, str], list[Figure]]]:
        """Run the command; the figures are those of the first rank. With `record`, operators are recorded instead."""
        work.mkdir(exist_ok=True)
        watched = work / "watched"
        options = {
            "cuda_is_cpu": self.cuda_is_cpu,
            "devices": devices,
            "watch": "" if record else str(watched),
            "port": 0,
        }
        environment = {**self.environment, "PYTHONHASHSEED": "0"}
        if record:
            environment = recording(RecordOptions(str(record), "ops", ranks=(0,), max_rows=MAX_ROWS), environment)
        folder = self.folder.resolve()
        logs = state_of(self.folder)
        began = time.monotonic()
        if (arguments := python_arguments(command)) is None:
            code, output = run_tree(_here(command), folder, observed(environment, folder, options))
        else:
            argv, environment = _observing(arguments, devices, work, options, own_first(folder, environment))
            code, output = run_tree(argv, folder, tied(environment))
        seconds = time.monotonic() - began
        (work / "output.log").write_bytes(output)
        log = work / "rank0.log"
        lines = (log.read_bytes() if log.exists() else output).decode(errors="replace").split("\n")
        losses = by_name([*losses_in(lines), *losses_written(self.folder, logs)])
        figures: dict[tuple[Kind, str], list[Figure]] = {("loss", name): series for name, series in losses.items()}
        for kind, figure in _watched(watched):
            figures.setdefault((kind, figure.name), []).append(figure)
        tail = output.decode(errors="replace").rstrip().split("\n")[-_TAIL:]
        return RunResult(self.device, code, round(seconds, 1), "\n".join(tail)), figures


def _observing(
    arguments: Sequence[str], devices: int, work: Path, options: dict[str, Any], environment: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command that runs a script or module so that it can be compared, as one process or as ranks."""
    if devices == 1:
        options = {**options, "port": free_port()}  # npukit's own ranks have a port
    script = ["-m", "npukit.launch.script", "-m", "npukit.verify.observe", json.dumps(options), *arguments]
    if devices == 1:
        return [sys.executable, *script], environment
    spare_launcher(environment, devices)
    ranks = ["--standalone", "--nproc-per-node", str(devices), "--log-dir", str(work)]
    return [*AGENT, *ranks, *script], environment


def _here(command: Sequence[str]) -> list[str]:
    """A launcher's command with npukit's Python."""
    is_python = Path(command[0]).name.startswith("python")
    beside = Path(sys.executable).with_name(command[0])
    program = sys.executable if is_python else str(beside) if beside.is_file() else command[0]
    return [program, *command[1:]]


def run_tree(argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, bytes]:
    """Run a program and end all processes that it leaves behind; returns its exit code and output.

    >>> run_tree(["bash", "run.sh"], Path("project"), os.environ)
    (0, b'step 1 loss 2.31\\n')
    """
    process = subprocess.Popen(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, output


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _watched(folder: Path) -> Iterator[tuple[Kind, Figure]]:
    """The figures that watch.py wrote, up to where the file was cut off."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        for line in path.read_text().splitlines():
            try:
                kind, name, value, direction, rounding, text = json.loads(line)
            except ValueError:
                break
            text = text or _TELLS[kind].format(name=name, value=value)
            if path.name != _MAIN:
                name = f"{path.name} {name}".rstrip()
            yield kind, Figure(name, value, None, text, direction, rounding)
