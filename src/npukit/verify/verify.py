"""Run a project before and after its migration with the same seeds, and compare their losses.

Only where they part are both run again, with every operator recorded, to find where it began.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError
from npukit.launch.devices import Devices, Wanted, choose, count_gpus
from npukit.launch.run import AGENT, spare_launcher
from npukit.machine import Machine
from npukit.verify.cause import first_cause
from npukit.verify.losses import Loss, by_name, difference, first_difference, losses_in
from npukit.verify.result import Divergence, OpDifference, OpUse, Run, Verification

_TAIL = 30
SAME_NUMBERS = (
    "Both runs drew their random numbers on the CPU, also for dropout, so that they agree; "
    "the exception is dropout inside an RNN."
)


@dataclass(frozen=True)
class _Side:
    """One of the two projects, and how it is run."""

    folder: Path
    device: str
    environment: Mapping[str, str]
    cuda_is_cpu: bool = False
    simulated: bool = False


def verify(
    before: Path,
    after: Path,
    command: Sequence[str],
    device: Wanted = Wanted.sim,
    devices: int = 1,
    tolerance: float = 1e-4,
    tell: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Whether `command` prints the same losses in both folders.

    >>> verify(Path("project"), Path("migrated"), ["python", "train.py", "--steps", "20"]).same
    True
    """
    arguments = _python_arguments(command, before, after)
    with tempfile.TemporaryDirectory(prefix="npukit-verify-") as folder:
        work = Path(folder)
        trace = work / "ops.json"
        original = _original(before)
        migrated = _migrated(after, choose(device, devices), trace)
        tell(f"running the original on {original.device}")
        first, expected = _run(original, arguments, devices, work / "before")
        if first.exit_code:
            raise NpukitError(
                f"The original project fails on {original.device}: fix it first. Its last lines:\n{first.output}"
            )
        if not expected:
            raise NpukitError(
                "The original project printed no loss and called no backward(): give a command that trains and that "
                "prints or logs its loss, such as `loss 2.31` or JSON."
            )
        tell(f"running the migrated project on {migrated.device}")
        second, got = _run(migrated, arguments, devices, work / "after")
        divergence = _diverges(expected, got, tolerance)
        if divergence and divergence.after is not None and second.exit_code == 0:
            tell("the losses differ: running both again to find the first difference")
            cause = _find_cause(original, migrated, arguments, devices, work, tolerance)
            divergence = Divergence(**{**divergence.__dict__, "cause": cause})
        uses = _uses(trace, after)
    npu_ops = sum(use.count for use in uses["npu"]) if migrated.simulated else None
    return Verification(
        same=divergence is None and second.exit_code == 0 and npu_ops != 0,
        tolerance=tolerance,
        compared=sum(len(series) for series in expected.values()),
        largest_difference=_largest(expected, got),
        before=first,
        after=second,
        divergence=divergence,
        npu_ops=npu_ops,
        cpu_fallbacks=uses["cpu_fallback"],
        not_simulated=uses["not_simulated"],
        notes=_notes(original, migrated),
    )


def _python_arguments(command: Sequence[str], before: Path, after: Path) -> list[str]:
    for folder in (before, after):
        if not folder.is_dir():
            raise NpukitError(f"There is no folder {folder}: give the project before and after its migration.")
    if not command or not Path(command[0]).name.startswith("python"):
        raise NpukitError(
            "Write the command after `--`, as in: npukit verify BEFORE AFTER -- python train.py --steps 20"
        )
    arguments = list(command[1:])
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "-m"):
        raise NpukitError(
            "Put a script, or -m and a module, right after `python`: Python's own options are not supported."
        )
    for folder in (before, after):
        if arguments[0] != "-m" and not (folder / arguments[0]).is_file():
            raise NpukitError(
                f"There is no {arguments[0]} in {folder}: give the path of the script relative to the project."
            )
    return arguments


def _original(folder: Path) -> _Side:
    if count_gpus(Machine()):
        return _Side(folder, "CUDA", choose(Wanted.cuda).environment())
    environment = choose(Wanted.cpu).environment()
    environment.pop("CUDA_VISIBLE_DEVICES")  # a script that reads it believes that there is CUDA
    return _Side(folder, "the CPU in place of CUDA", environment, cuda_is_cpu=True)


def _migrated(folder: Path, devices: Devices, trace: Path) -> _Side:
    return _Side(folder, str(devices), devices.environment(trace=trace), simulated=devices.simulated)


def _run(
    side: _Side, arguments: Sequence[str], devices: int, work: Path, record: Path | None = None
) -> tuple[Run, dict[str, list[Loss]]]:
    """Run the command, and find its losses: in the first rank's output, and in the .jsonl files that it wrote; where
    it tells none, those it called backward() on."""
    work.mkdir(exist_ok=True)
    losses = work / "backward.txt"
    options = {"cuda_is_cpu": side.cuda_is_cpu, "devices": devices, "record": str(record or ""), "losses": str(losses)}
    script = ["-m", "npukit.launch.script", "-m", "npukit.verify.observe", json.dumps(options), *arguments]
    environment = {**side.environment, "PYTHONHASHSEED": "0"}
    if devices == 1:
        argv = [sys.executable, *script]
    else:
        spare_launcher(environment, devices)
        ranks = ["--standalone", "--nproc-per-node", str(devices), "--log-dir", str(work)]
        argv = [*AGENT, *ranks, *script]
    there_before = _logs(side.folder)
    began = time.monotonic()
    done = subprocess.run(argv, cwd=side.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seconds = time.monotonic() - began
    log = work / "rank0.log"
    lines = (log.read_bytes() if log.exists() else done.stdout).decode(errors="replace").split("\n")
    found = by_name(losses_in(lines))
    for path, state in _logs(side.folder).items():
        if there_before.get(path) != state:
            name = path.relative_to(side.folder).as_posix()
            logged = by_name(losses_in(path.read_text(errors="replace").splitlines()))
            found |= {f"{name}: {each}": losses for each, losses in logged.items()}
    if not found and losses.exists():
        found = by_name(losses_in(losses.read_text().splitlines()))
    tail = done.stdout.decode(errors="replace").rstrip().split("\n")[-_TAIL:]
    values = tuple(loss.value for series in found.values() for loss in series)
    return Run(side.device, done.returncode, round(seconds, 1), values, "\n".join(tail)), found


def _logs(folder: Path) -> dict[Path, tuple[int, int]]:
    """The logs in a folder, with what changes when they are written; clocks are not compared, they can step back."""
    states = {path: path.stat() for path in sorted(folder.rglob("*.jsonl")) if path.is_file()}
    return {path: (state.st_size, state.st_mtime_ns) for path, state in states.items()}


def _diverges(before: Mapping[str, list[Loss]], after: Mapping[str, list[Loss]], tolerance: float) -> Divergence | None:
    """The first divergence of each kind of loss; of these the one that comes soonest."""
    found = []
    for name, series in before.items():
        if differs := first_difference(series, after.get(name, []), tolerance):
            number, one, other = differs
            step = next((loss.step for loss in (one, other) if loss and loss.step is not None), None)
            values = (one.value if one else None, other.value if other else None)
            texts = (one.text if one else "", other.text if other else "")
            found.append(Divergence(name, number, step, *values, *texts))
    return min(found, key=lambda divergence: divergence.number, default=None)


def _find_cause(
    original: _Side, migrated: _Side, arguments: Sequence[str], devices: int, work: Path, tolerance: float
) -> OpDifference | None:
    records = work / "before.ops", work / "after.ops"
    for side, record in zip((original, migrated), records, strict=True):
        _run(side, arguments, devices, work / f"{record.stem}-again", record)
    return first_cause(original.folder, migrated.folder, records, tolerance)


def _largest(before: Mapping[str, list[Loss]], after: Mapping[str, list[Loss]]) -> float:
    pairs = [pair for name in before for pair in zip(before[name], after.get(name, []), strict=False)]
    return max((difference(one.value, other.value) for one, other in pairs), default=0.0)


def _uses(trace: Path, project: Path) -> dict[str, tuple[OpUse, ...]]:
    """The operators of a trace, by how torch_npu supports them."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for op in json.loads(trace.read_text())["ops"] if trace.exists() else ():
        counts[op["support"], op["op"], op["line"].removeprefix(f"{project.resolve()}/")] += op["count"]
    supports = ("npu", "cpu_fallback", "not_simulated")
    return {
        support: tuple(OpUse(op, line, count) for (how, op, line), count in sorted(counts.items()) if how == support)
        for support in supports
    }


def _notes(original: _Side, migrated: _Side) -> tuple[str, ...]:
    notes = [SAME_NUMBERS]
    if original.cuda_is_cpu:
        notes.append("The original ran on the CPU: every use of CUDA was mapped to it, including half precision.")
    if migrated.simulated:
        notes.append("The NPU was simulated: torch_npu ran on the CPU's arithmetic, not on a card's.")
    return tuple(notes)
