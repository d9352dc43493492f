"""Records a few steps of an unchanged script, which runs under `recorder` in each of its ranks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from npukit.errors import NpukitError
from npukit.launch.devices import Devices
from npukit.launch.run import run
from npukit.packages import require
from npukit.report.writing import make_folder

SETTINGS = "NPUKIT_PROFILE"  # the settings, as JSON, for the recorder
RECORDER = ["-m", "npukit.performance.recording.recorder"]
PYTHON = re.compile(r"python[\d.]*$")
KILOBYTES = 0.3  # of an event in a trace of torch.profiler, measured on public traces


@dataclass(frozen=True)
class Settings:
    """What is recorded: optimizer steps `first` to `last`, counted from 0.

    Level 0 has operators and kernels; 1 adds shapes and memory (on an NPU: the cores' counters and communication);
    2 adds call stacks, which slow the host down.
    """

    first: int = 10
    last: int = 12
    level: int = 1
    folder: str = "profile"
    stop: bool = False


def steps_of(text: str) -> tuple[int, int]:
    """The first and the last step of `10-12` or `10`.

    >>> steps_of("10-12")
    (10, 12)
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise NpukitError(f"--steps {text} names no steps: write 10-12, or 10 for one, counted from 0.")
    return first, last


def profile(command: Sequence[str], devices: Devices, settings: Settings) -> NoReturn:
    """Run `command` (a script, or `python` and a script) on the devices and record its steps into the folder.

    >>> profile(["python", "train.py"], choose("cpu"), Settings(first=5, last=7))
    """
    require("torch", extra="sim")
    script = list(command)
    if PYTHON.search(Path(script[0]).name):
        script = script[1:]
    if not script or script[0] in ("torchrun", "accelerate", "deepspeed") or Path(script[0]).name == "torchrun":
        raise NpukitError(
            "Name a Python script after `--`; several ranks are started by --devices N, not by a launcher."
        )
    if script[0] != "-m" and not Path(script[0]).is_file():
        raise NpukitError(f"There is no script {script[0]}: name a Python file, or -m and a module.")
    folder = Path(settings.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NpukitError(f"Cannot record into {folder}: it is not an empty folder. Name another with --output.")
    make_folder(folder)
    print(_announced(settings, devices, folder), flush=True)
    environment = devices.environment()
    environment[SETTINGS] = json.dumps(asdict(settings) | {"folder": str(folder.absolute())})
    environment.setdefault("KINETO_LOG_LEVEL", "99")  # it logs every start and stop
    run([*RECORDER, *script], environment, ranks=devices.count)


def _announced(settings: Settings, devices: Devices, folder: Path) -> str:
    """Announce what will be recorded, and its size on disk."""
    free = shutil.disk_usage(folder).free / 2**30
    takes = f"about {KILOBYTES} KB for each operator and kernel"
    if devices.kind == "npu":
        takes = "torch_npu asks for 20 times the raw data"
    steps = (
        f"step {settings.first}" if settings.first == settings.last else f"steps {settings.first} to {settings.last}"
    )
    return f"npukit: {steps} will be recorded on {devices} into {folder} ({takes}; {free:.0f} GB are free)."
