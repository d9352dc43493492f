"""Plant faults in small models, one at a time: is the first operator that differs the one that was changed?

    python -m benchmarks precision_faults [--cases tuned held_out] [--only NAME] [--msprobe PYTHON] [--keep FOLDER]

Most faults are wrong kernels: below the recorder, the result of one call of one operator is changed, as a device would.
The others are mistakes in code: another epsilon, a dropped mask, weights that were transposed. Clean pairs differ as
two right runs do: other threads, other kernels, other memory formats, activation checkpointing, DDP. Precision's
tolerances were tuned on the cases `tuned`; nothing was tuned on `held_out`.
With --msprobe (the Python of an environment with mindstudio-probe) its verdict on the same dumps stands beside ours.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
from benchmarks.agreement.planted_faults import (
    cases,
    family_cases,
    fresh_cases,
    later_cases,
    more_cases,
    right_pairs,
    unseen_cases,
)
from benchmarks.agreement.planted_faults.faults import Clean, Fault, Patch, WrongKernel
from benchmarks.agreement.planted_faults.models import make
from torch import Tensor, nn

from npukit.precision import capture
from npukit.precision.comparing import compare
from npukit.precision.result import Comparison

CASES: dict[str, tuple[list[Fault], list[Clean]]] = {
    "tuned": (cases.TUNED, cases.TUNED_CLEAN),
    "held_out": (cases.HELD_OUT, cases.HELD_OUT_CLEAN),
    "families_read": (family_cases.READ, family_cases.READ_CLEAN),
    "families_unread": (family_cases.UNREAD, family_cases.UNREAD_CLEAN),
    "more_families": (more_cases.FAULTS, more_cases.CLEAN),
    "later": (later_cases.FAULTS, later_cases.CLEAN),
    "later_unread": (later_cases.UNREAD, later_cases.UNREAD_CLEAN),
    "later_last": (later_cases.LAST, later_cases.LAST_CLEAN),
    "fresh": (fresh_cases.FAULTS, fresh_cases.CLEAN),
    "right_pairs": ([], right_pairs.CLEAN),
    "unseen": (unseen_cases.FAULTS, unseen_cases.CLEAN),
}


def record(kind: str, folder: Path, patch: Patch | None = None, below: Any = None, level: str = "ops") -> Path:
    """One step of the model, recorded."""
    run = make(kind)
    context = (patch(run) if patch else None) or ExitStack()
    with ExitStack() as around:
        around.enter_context(context)
        if below:
            around.enter_context(below)
        around.enter_context(capture(folder, level=level, steps=[0], fresh=kind == "unet"))  # type: ignore[arg-type]
        for part in range(run.parts):
            output = run.model(**{name: value.chunk(run.parts)[part] for name, value in run.batch.items()})
            loss = (output if isinstance(output, Tensor) else output.loss) * (run.scale / run.parts)
            loss.backward()
        if run.clip:
            nn.utils.clip_grad_norm_(run.model.parameters(), run.clip)
        run.optimizer.step()
    if below and below.left >= 0:
        raise SystemExit(f"{kind} does not call {below.op} that often: the fault was not planted.")
    return folder


def is_named(fault: Fault, result: Comparison) -> bool:
    """Whether the first difference is the fault."""
    if result.first is None:
        return False
    if fault.op:
        prefix = f"Aten.{fault.op}.{fault.number}.forward"
        return result.first.row.left == prefix
    return re.search(fault.expected, f"{result.first.kind}: {result.first.what}", re.DOTALL) is not None


MSPROBE = """
import glob, json, os, sys, tempfile
from msprobe.pytorch.compare.pt_compare import pt_compare
import pandas
for line in sys.stdin:
    left, right = json.loads(line)
    with tempfile.TemporaryDirectory() as out:
        os.chmod(out, 0o700)
        try:
            paths = {"npu_path": right + "/dump.json", "bench_path": left + "/dump.json"}
            pt_compare({**paths, "is_print_compare_log": False}, out)
            table = pandas.read_csv(glob.glob(out + "/*.csv")[0])
            bad = table[table.Result != "pass"]
            first = bad.iloc[0]["NPU Name"] if len(bad) else ""
            counts = [int((table.Result == kind).sum()) for kind in ("error", "warning")]
            print("MSPROBE", json.dumps([len(table), *counts, first]), flush=True)
        except BaseException as error:
            print("MSPROBE", json.dumps([0, 0, 0, "failed: " + repr(error)[:80]]), flush=True)
"""


def msprobe_verdicts(python: str, pairs: list[tuple[str, str]]) -> Iterator[list[Any]]:
    """Rows, errors, warnings and the first row that does not pass, of each pair as soon as it is known."""
    text = "".join(json.dumps([f"{a}/step0/rank0", f"{b}/step0/rank0"]) + "\n" for a, b in pairs)
    with tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        command = [python, "-c", MSPROBE]
        with subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as it:
            for line in it.stdout or ():
                if line.startswith("MSPROBE "):
                    yield json.loads(line.partition("MSPROBE ")[2])


class Evaluation:
    """Plants faults and runs clean pairs, and prints what became of each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pairs: list[tuple[str, str]] = []
        self.lines: list[str] = []

    def fault(self, fault: Fault) -> bool:
        """Whether it is named."""
        below = WrongKernel(fault.op, fault.number, fault.change) if fault.change else None
        result = self._compare(fault.model, "ops", fault.patch, below, fault.left)
        named = is_named(fault, result)
        self._show("found " if named else "MISSED", fault, result, "same")
        return named

    def clean(self, clean: Clean) -> bool:
        """Whether the two runs are called the same."""
        result = self._compare(clean.model, clean.level, clean.patch, None)
        self._show("clean " if result.same else "FALSE ", clean, result, f"same, {result.coverage:.0%} compared")
        return result.same

    def _compare(
        self, model: str, level: str, patch: Patch | None, below: WrongKernel | None, own: Patch | None = None
    ) -> Comparison:
        left = self._folder / (f"left of {len(self.pairs)}" if own else f"{model}-{level}")
        if not left.exists():
            record(model, left, own, level=level)
        right = record(model, self._folder / str(len(self.pairs)), patch, below, level)
        self.pairs.append((str(left), str(right)))
        return compare(left, right)

    def _show(self, verdict: str, case: Fault | Clean, result: Comparison, otherwise: str) -> None:
        what = f"{result.first.kind}: {result.first.what}" if result.first else otherwise
        self.lines.append(f"{verdict} {case.model:<7} {case.name:<32} {what[:110]}")
        print(self.lines[-1], flush=True)


def main(
    cases: Annotated[tuple[str, ...], CASES] = tuple(CASES),
    only: Annotated[str, "those with this in their model and name"] = "",
    msprobe: str = "",
    keep: str = "",
) -> None:
    torch.set_num_threads(1)
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="precision-") as folder:
        evaluation = Evaluation(Path(keep or folder))
        for name in cases:
            faults, clean = CASES[name]
            named = [evaluation.fault(fault) for fault in faults if only in f"{fault.model} {fault.name}"]
            same = [evaluation.clean(pair) for pair in clean if only in f"{pair.model} {pair.name}"]
            print(
                f"{name}: {sum(named)} of {len(named)} faults named, {same.count(False)} of {len(same)} clean pairs "
                f"called different; {time.time() - began:.0f} s\n"
            )
        if msprobe:
            print("msprobe on the same dumps: rows, errors, warnings, first row that is not `pass`")
            verdicts = msprobe_verdicts(msprobe, evaluation.pairs)
            for line, verdict in zip(evaluation.lines, verdicts, strict=True):
                print(f"{line[:48]} {verdict[0]:>5} {verdict[1]:>4} {verdict[2]:>4}  {verdict[3]}", flush=True)
