"""Try settings by short runs, and keep the fastest that stays within the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from npukit.cache import cache_folder
from npukit.errors import NpukitError
from npukit.launch.devices import Devices
from npukit.llm.config.options import Config
from npukit.llm.finetune.rank import handed_over
from npukit.llm.start import INDUCTOR_CACHE
from npukit.performance.plan.fit import Changes, changed
from npukit.performance.tune.search import groups
from npukit.report.writing import make_folder, write_text

TRIALS = "trials.jsonl"
WARM_UP = 2  # steps of a run that do not count
FASTER = 1.02  # a gain below is noise
TRIAL = "npukit.performance.tune.trial"


@dataclass(frozen=True)
class Trial:
    """One short run."""

    changes: Changes  # to the configuration as it was given
    tokens_per_second: float  # 0 for a run that failed
    memory_gib: float
    within_memory: bool
    error: str = ""


@dataclass(frozen=True)
class Tuning:
    """All trials, the first of which changed nothing, and the one that won."""

    trials: tuple[Trial, ...]
    best: Trial
    config: Config

    @property
    def gain(self) -> float:
        """How many times as fast as before."""
        before = self.trials[0].tokens_per_second
        return self.best.tokens_per_second / before if before else 0.0

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        trials = [asdict(trial) for trial in self.trials]
        return {"trials": trials, "best": asdict(self.best), "gain": self.gain, "config": self.config}


def tune(
    config: Config,
    devices: Devices,
    folder: Path,
    steps: int = 8,
    memory_gib: float | None = None,
    log: Callable[[str], None] = lambda _: None,
    keep: Callable[[Config], None] = lambda _: None,
) -> Tuning:
    """Run `steps` steps with other settings until none is faster; `folder` keeps the trials, which are not repeated.

    `keep` is given each configuration that is faster than all before, so that a tuning that is stopped leaves it.

    >>> tune(config, choose("npu", 8), Path("tuning")).best.changes
    {'training.batch_size': 4, 'training.accumulation': 2}
    """
    make_folder(folder)
    bench = _Bench(config, devices, folder, max(steps, WARM_UP + 1), memory_gib, log)
    best = first = bench.run({})
    if first.error:
        raise NpukitError(f"The configuration does not run as it is: {first.error}")
    cores = (os.cpu_count() or 1) // devices.count
    for number in range(len(list(groups(config, cores, devices.count)))):
        for more in list(groups(changed(config, best.changes), cores, devices.count))[number]:
            trial = bench.run({**best.changes, **more})
            if not trial.within_memory or trial.tokens_per_second < best.tokens_per_second * FASTER:
                break
            best = trial
            keep(changed(config, best.changes))
    return Tuning(tuple(bench.trials), best, changed(config, best.changes))


class _Bench:
    """Runs trials, and remembers them."""

    def __init__(
        self,
        config: Config,
        devices: Devices,
        folder: Path,
        steps: int,
        memory_gib: float | None,
        log: Callable[[str], None],
    ) -> None:
        self._config, self._devices, self._folder, self._log = config, devices, folder, log
        self._steps, self._memory_gib = steps, memory_gib
        self._file = folder / TRIALS
        self._known = self._read()
        self.trials: list[Trial] = []

    def _about(self) -> dict[str, Any]:
        """What a trial must have in common with this tuning to count."""
        config = self._config.model_dump(mode="json")
        return {"config": config, "devices": asdict(self._devices), "steps": self._steps, "memory": self._memory_gib}

    def _read(self) -> list[Trial]:
        try:
            lines = [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines()]
            if lines and lines[0] == json.loads(json.dumps(self._about())):
                return [Trial(**line) for line in lines[1:]]
        except (OSError, ValueError, TypeError):
            pass  # of another tuning, or cut off in the middle: then it begins again
        return []

    def run(self, changes: Changes) -> Trial:
        """Measure, unless that was done before."""
        wanted = changed(self._config, changes)
        known = next((e for e in (*self.trials, *self._known) if changed(self._config, e.changes) == wanted), None)
        trial = known or self._measure(changes)
        if trial not in self.trials:
            self.trials.append(trial)
            self._log(describe(trial))
        lines = [self._about(), *map(asdict, self.trials), *(asdict(e) for e in self._known if e not in self.trials)]
        write_text(self._file, "".join(json.dumps(line) + "\n" for line in lines))
        return trial

    def _measure(self, changes: Changes) -> Trial:
        output = self._folder / "trial"
        config = _short(changed(self._config, changes), output, self._steps)
        command = [
            sys.executable,
            "-m",
            "npukit",
            "run",
            "--device",
            self._name(),
            "--devices",
            str(self._devices.count),
        ]
        environment = {**os.environ, INDUCTOR_CACHE: str(cache_folder() / "inductor"), **handed_over(config)}
        with (self._folder / "trial.log").open("w", encoding="utf-8") as log:
            code = subprocess.run([*command, "-m", TRIAL], env=environment, stdout=log, stderr=log).returncode
        if code < 0 or code in (130, 143):
            raise KeyboardInterrupt  # somebody stops the tuning: that says nothing about the settings
        if code:
            return Trial(changes, 0.0, 0.0, False, _last_line(self._folder / "trial.log"))
        rows = [json.loads(line) for line in (output / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        steps = [row for row in rows if "items_per_second" in row][WARM_UP:]
        memory = max(row["memory_gib"] for row in steps)
        within = self._memory_gib is None or memory <= self._memory_gib
        return Trial(changes, median(row["items_per_second"] for row in steps), memory, within)

    def _name(self) -> str:
        return "sim" if self._devices.simulated else self._devices.kind


def _short(config: Config, output: Path, steps: int) -> Config:
    """A run that measures and leaves nothing behind."""
    return changed(
        config,
        {
            "training.output": output,
            "training.max_steps": steps,
            "training.log_every": 1,
            "training.save_every": None,
            "training.eval_every": None,
            "training.early_stopping": None,
            "training.resume": "never",
            "training.plot": False,
            "training.loggers": (),
            "training.profile": None,
            "data.validation": 0.0,
        },
    )


def _last_line(file: Path) -> str:
    lines = [line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told_by_us = [line.removeprefix("npukit: ") for line in lines if line.startswith("npukit: ")]
    return (told_by_us or lines or ["it ended without a message"])[-1]


def describe(trial: Trial) -> str:
    """A trial in a line.

    >>> told(Trial({}, 1000.0, 12.0, True))
    '     1,000 tokens/s   12.0 GiB  as configured'
    """
    what = " ".join(f"{key}={value}" for key, value in trial.changes.items()) or "as configured"
    if trial.error:
        return f"{'failed':>19}{'':12}  {what}: {trial.error}"
    more = "" if trial.within_memory else " (above the limit of memory)"
    return f"{trial.tokens_per_second:>10,.0f} tokens/s {trial.memory_gib:>6.1f} GiB  {what}{more}"
