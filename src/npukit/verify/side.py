"""Run one of the two projects, and collect what it told and what was observed in it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.launch.devices import Devices, Wanted, choose, count_gpus
from npukit.launch.run import AGENT, own_first, spare_launcher, tied
from npukit.machine import Machine
from npukit.precision.recording.hook import recording
from npukit.precision.recording.options import Options
from npukit.verify.figure import Figure, by_name
from npukit.verify.logs import losses_written, state_of
from npukit.verify.losses import losses_in
from npukit.verify.result import Kind, Run

MOST_ROWS = 50_000  # of operators and modules, that are recorded to find a cause
_TAIL = 30
_MAIN = "MainProcess"  # as multiprocessing calls it
_TELLS: Mapping[Kind, str] = {
    "backward": "backward() is called on {value:.9g}",
    "outputs": "a module returns tensors of norm {value:.9g}",
    "gradients": "gradients of norm {value:.9g}",
    "weights": "weights of norm {value:.9g}",
    "settings": "{name} = {value:.9g}",
}


@dataclass(frozen=True)
class Side:
    """One of the two projects, and how it is run."""

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
        environment.pop("CUDA_VISIBLE_DEVICES")  # a script that reads it believes that there is CUDA
        return cls(folder, "the CPU in place of CUDA", environment, cuda_is_cpu=True)

    @classmethod
    def migrated(cls, folder: Path, devices: Devices, trace: Path) -> Side:
        return cls(folder, str(devices), devices.environment(trace=trace), simulated=devices.simulated)

    def run(
        self, arguments: Sequence[str], devices: int, work: Path, record: Path | None = None
    ) -> tuple[Run, dict[tuple[Kind, str], list[Figure]]]:
        """Run the command; the figures are those of the first rank. With `record`, operators are recorded instead."""
        work.mkdir(exist_ok=True)
        watched = work / "watched"
        options = {
            "cuda_is_cpu": self.cuda_is_cpu,
            "devices": devices,
            "watch": "" if record else str(watched),
            "port": free_port() if devices == 1 else 0,  # ranks that npukit starts have one
        }
        script = ["-m", "npukit.launch.script", "-m", "npukit.verify.observe", json.dumps(options), *arguments]
        environment = tied(own_first(self.folder.resolve(), {**self.environment, "PYTHONHASHSEED": "0"}))
        if record:
            environment = recording(Options(str(record), "ops", ranks=(0,), most_rows=MOST_ROWS), environment)
        if devices == 1:
            argv = [sys.executable, *script]
        else:
            spare_launcher(environment, devices)
            ranks = ["--standalone", "--nproc-per-node", str(devices), "--log-dir", str(work)]
            argv = [*AGENT, *ranks, *script]
        logs = state_of(self.folder)
        began = time.monotonic()
        done = subprocess.run(argv, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        seconds = time.monotonic() - began
        log = work / "rank0.log"
        lines = (log.read_bytes() if log.exists() else done.stdout).decode(errors="replace").split("\n")
        told = by_name([*losses_in(lines), *losses_written(self.folder, logs)])
        figures: dict[tuple[Kind, str], list[Figure]] = {("loss", name): series for name, series in told.items()}
        for kind, figure in _watched(watched):
            figures.setdefault((kind, figure.name), []).append(figure)
        tail = done.stdout.decode(errors="replace").rstrip().split("\n")[-_TAIL:]
        return Run(self.device, done.returncode, round(seconds, 1), "\n".join(tail)), figures


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _watched(folder: Path) -> Iterator[tuple[Kind, Figure]]:
    """What watch.py wrote; a file that was cut short is read as far as it goes."""
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
