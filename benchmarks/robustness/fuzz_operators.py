"""torch's own operator samples (OpInfo) on a simulated NPU, held against the CPU: results, gradients, refusals.

    python -m benchmarks fuzz_operators [--only NAME ...] [--samples 2] [--results FILE]

Every operator is computed in every dtype that the CPU supports: as a function, in place, with out= (right and wrong
size), with strided, expanded and empty inputs, and backward. A process works through the operators; when one of them
crashes it or takes too long, that is a finding, and a new process goes on with the next. Results are appended to FILE;
operators that are in it already are not computed again, so that a run can be stopped and continued.

Exit code 1 on a finding that fuzz_operators.yaml does not list with its cause.
"""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml

SECONDS = 180  # for one operator
GOOD = ("equal", "equal to fp32, rounded once", "both refuse")
KNOWN: list[dict[str, str]] = [*yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())]


def name_of(op: Any) -> str:
    return str(op.name) + (f".{op.variant_test_name}" if op.variant_test_name else "")


def fuzz_all(ops: list[Any], most: int, results: Path) -> None:
    """Compute operators in children of this process, until each is in the file of results."""
    remaining = [op for op in ops if name_of(op) not in {line["op"] for line in read(results)}]
    now = results.with_suffix(".now")
    while remaining:
        now.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            work_through(remaining, most, results, now)
        status = wait(child, now)
        at = now.read_text().split("\t") if now.exists() else []
        done = {line["op"] for line in read(results)}
        if at and at[0] not in done:
            why = "no end" if status == signal.SIGKILL else f"crash with status {status}"
            append(results, {"op": at[0], "counts": {why.partition(" with")[0]: 1}, "found": [[why, *at[1:3], ""]]})
            done.add(at[0])
        elif status:
            raise SystemExit(f"The process of the operators ended with status {status} between two of them.")
        remaining = [op for op in remaining if name_of(op) not in done]


def wait(child: int, now: Path) -> int:
    """The status of a child, which is killed when it stays too long with one operator."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        at = now.read_text().split("\t") if now.exists() else []
        if len(at) == 4 and time.time() - float(at[3]) > SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.5)


def work_through(ops: list[Any], most: int, results: Path, now: Path) -> None:
    """In a child: one operator after the other; does not return."""
    from benchmarks.robustness.fuzzing.samples import findings, without_cuda_seeds

    without_cuda_seeds()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for op in ops:
        counts: collections.Counter[str] = collections.Counter()
        findings_by_way: dict[tuple[str, str, str], str] = {}
        begun = time.time()
        for way, dtype, kind, how in findings(op, most, partial(note, now, op, begun)):
            counts[kind] += 1
            if kind not in GOOD:
                findings_by_way.setdefault((kind, way, dtype), how)
        listed = [[*what, how] for what, how in findings_by_way.items()]
        append(
            results, {"op": name_of(op), "counts": counts, "found": listed, "seconds": round(time.time() - begun, 1)}
        )
    os._exit(0)


def note(now: Path, op: Any, begun: float, at: str) -> None:
    beside = now.with_suffix(".next")
    beside.write_text(f"{name_of(op)}\t{at}\t{begun}")
    beside.replace(now)


def append(results: Path, line: dict[str, Any]) -> None:
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(results: Path) -> Iterator[dict[str, Any]]:
    if results.exists():
        yield from map(json.loads, results.read_text().splitlines())


def cause_of(op: str, kind: str, way: str, dtype: str, how: str) -> dict[str, str] | None:
    """The row of fuzz_operators.yaml that explains a finding; its patterns must match all of a field."""
    finding = {"op": op, "kind": kind, "way": way, "dtype": dtype, "how": how}
    for row in KNOWN:
        if all(re.fullmatch(row[field], value) for field, value in finding.items() if field in row):
            return row
    return None


def main(
    samples: Annotated[int, "of OpInfo, for each operator and dtype"] = 2,
    only: Annotated[tuple[str, ...], "these operators"] = (),
    results: Path = Path("fuzz_operators.jsonl"),
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    from npukit.simulate import activate

    activate()
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    ops = [op for op in op_db if not only or op.name in only]
    fuzz_all(ops, samples, results)
    wanted = {name_of(op) for op in ops}
    sys.exit(report([line for line in read(results) if line["op"] in wanted]))


def report(lines: list[dict[str, Any]]) -> int:
    """Print what was found, by cause; 1 if there is something without one."""
    totals: collections.Counter[str] = collections.Counter()
    causes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    new = 0
    for line in lines:
        totals.update(line["counts"])
        for kind, way, dtype, how in line["found"]:
            if row := cause_of(line["op"], kind, way, dtype, how):
                causes[f"{row['whose']}: {row['cause']}"][line["op"]] += 1
            else:
                new += 1
                print(f"{line['op']}: {kind}: {way} {dtype}: {how}")
    print(f"{len(lines)} operators; " + ", ".join(f"{number:,} {kind}" for kind, number in totals.most_common()))
    for cause, by_operator in sorted(causes.items()):
        print(f"{len(by_operator):4} operators, {by_operator.total():4} findings; {cause}")
    print(f"{new} findings that are not listed")
    return int(new > 0)
