"""Runs a project before and after its migration with the same seeds, and compares their figures.

If they differ, both are run again with every operator recorded, to find where the difference begins.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from npukit.errors import NpukitError
from npukit.launch.commands import check_command, devices_asked
from npukit.launch.devices import Wanted, choose
from npukit.launch.launch import new_log_folder
from npukit.precision import comparing
from npukit.precision.result import Divergence
from npukit.report.unfinished import temporary_folder
from npukit.verify.compare import Figures, Tolerance, compare, worth_comparing
from npukit.verify.result import Kind, Losses, OpUse, RunResult, Verification
from npukit.verify.side import Side

SAME_NUMBERS = (
    "Both runs drew their random numbers on the CPU, also for dropout, so that they agree; "
    "the exception is dropout inside an RNN."
)


def verify(
    before: Path,
    after: Path,
    command: Sequence[str],
    device: Wanted = Wanted.sim,
    devices: int | None = None,
    tolerance: float | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Whether `command` computes the same in both folders; `tolerance` is for losses.

    `command` is `python` with a script or module, which runs as `devices` ranks, or a launcher or shell script, which
    gets `devices`, by default as many as its options ask for.

    >>> verify(Path("project"), Path("migrated"), ["python", "train.py", "--steps", "20"]).same
    True
    """
    for folder in (before, after):
        _check_folder(folder)
        check_command(command, folder)
    devices = devices or devices_asked(command, before)
    allowed = Tolerance(tolerance)
    with temporary_folder("verify") as work:
        trace = work / "ops.json"
        original = Side.original(before)
        migrated = Side.migrated(after, choose(device, devices), trace)
        log(f"running the original on {original.device}")
        first, figures = original.run(command, devices, work / "before")
        if first.exit_code:
            raise _failure_of_original(original, _with_kept_logs(first, work))
        expected = worth_comparing(figures)
        if all(kind == "settings" for kind, _ in expected):
            raise NpukitError(
                "The original project printed no changing loss, and called neither a module nor backward(): give a "
                "command that trains or computes something with a model."
            )
        log(f"running the migrated project on {migrated.device}")
        second, got = migrated.run(command, devices, work / "after")
        compared, divergence = compare(expected, got, allowed)
        if divergence and divergence.after is not None and divergence.kind != "settings" and second.exit_code == 0:
            log("the runs differ: running both again to find the first difference")
            cause = _find_cause(original, migrated, command, devices, work)
            divergence = replace(divergence, cause=cause)
        uses = _uses(trace, after)
        npu_ops = sum(use.count for use in uses["npu"]) if migrated.simulated else None
        same = divergence is None and second.exit_code == 0 and npu_ops != 0
        second = second if same else _with_kept_logs(second, work)
    rounding = max((figure.rounding for series in figures.values() for figure in series), default=0.0)
    return Verification(
        same=same,
        tolerance=allowed.of("loss", rounding),
        compared=compared,
        losses=_losses(expected, got),
        before=first,
        after=second,
        divergence=divergence,
        npu_ops=npu_ops,
        cpu_fallbacks=uses["cpu_fallback"],
        not_simulated=uses["not_simulated"],
        notes=_notes(original, migrated),
    )


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise NpukitError(f"{folder} is a file: give the folder of the project, before and after its migration.")
    if not folder.is_dir():
        raise NpukitError(f"There is no folder {folder}: give the project before and after its migration.")


def _failure_of_original(original: Side, run: RunResult) -> NpukitError:
    return NpukitError(
        f"The original project fails on {original.device}: fix it first. Its last lines:\n{run.output}"
        + (f"\nAll that was printed is in {run.logs}" if run.logs else "")
    )


def _with_kept_logs(run: RunResult, work: Path) -> RunResult:
    """Copy what was printed so far to where it outlives this command, and let the run's output name that place."""
    kept = new_log_folder()
    try:
        for log in (*work.glob("before/*.log"), *work.glob("after/*.log")):
            place = kept / log.relative_to(work)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, place)
    except OSError:  # a folder without room or permission; the run's result matters more
        return run
    return replace(run, output=run.output.replace(str(work), str(kept)), logs=str(kept))


def _losses(before: Figures, after: Figures) -> tuple[Losses, ...]:
    """Both curves of each loss; if none was printed, of the tensors on which backward() was called."""
    kinds = {kind for kind, _ in before} & {"loss", "backward"}
    wanted = "loss" if "loss" in kinds else "backward"
    return tuple(
        Losses(name or wanted, _values(before, kind, name), _values(after, kind, name))
        for kind, name in before
        if kind == wanted
    )


def _values(figures: Figures, kind: Kind, name: str) -> tuple[float, ...]:
    return tuple(figure.value for figure in figures.get((kind, name), ()))


def _find_cause(original: Side, migrated: Side, command: Sequence[str], devices: int, work: Path) -> Divergence | None:
    dumps = work / "before-dump", work / "after-dump"
    for side, dump in zip((original, migrated), dumps, strict=True):
        side.run(command, devices, work / f"{dump.name}-run", dump)
    first = comparing.compare(*dumps).first

    def relative(text: str) -> str:
        for side in (original, migrated):
            text = text.replace(f"{side.folder.resolve()}/", "")
        return text

    return first and replace(
        first, what=relative(first.what), place=relative(first.place), right_place=relative(first.right_place)
    )


def _uses(trace: Path, project: Path) -> dict[str, tuple[OpUse, ...]]:
    """The operators in a trace by their support in torch_npu."""
    counts: Counter[tuple[str, str, str]] = Counter()
    traces = trace.parent.glob(f"{trace.name}*")  # every process of a launcher writes one
    for op in (op for path in traces for op in json.loads(path.read_text())["ops"]):
        counts[op["support"], op["op"], op["line"].removeprefix(f"{project.resolve()}/")] += op["count"]
    supports = ("npu", "cpu_fallback", "not_simulated")
    return {
        support: tuple(OpUse(op, line, count) for (how, op, line), count in sorted(counts.items()) if how == support)
        for support in supports
    }


def _notes(original: Side, migrated: Side) -> tuple[str, ...]:
    notes = [SAME_NUMBERS]
    if original.cuda_is_cpu:
        notes.append("The original ran on the CPU: every use of CUDA was mapped to it, including half precision.")
    if migrated.simulated:
        notes.append("The NPU was simulated: torch_npu ran on the CPU's arithmetic, not on a card's.")
    return tuple(notes)
