"""accelerate's own tests, unmodified, on simulated NPUs; and which failures are not the CPU's too.

    python -m benchmarks accelerate_suite CHECKOUT [--only NAME ...] [--devices 2] [--limit 1200]

CHECKOUT holds accelerate's folder tests/ for the version that is installed. Every file of tests is run by
`pytest --npu-sim`; the tests start accelerate's multi-process scripts themselves. What fails there is run again without
NPUs. A failure counts unless the test fails on the CPU as well, or asks for a model or data set of a hub.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

OFFLINE = (
    "OfflineModeIsEnabled",
    "outgoing traffic has been disabled",
    "offline mode",
    "HF_HUB_OFFLINE",
    "doesn't exist on the Hugging Face Hub",  # evaluate, of a metric
)


def run(checkout: Path, tests: list[str], options: list[str], limit: float) -> dict[str, tuple[str, str]]:
    """Each test's outcome (passed, failed, skipped) and why."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        variables = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # tests call accelerate
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        try:
            ended = subprocess.run(
                [*command, *options, *tests], cwd=checkout, env=variables, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {tests[0]: ("failed", f"no end after {limit:.0f} s")}
        if not report.exists():
            return {tests[0]: ("failed", (ended.stdout + ended.stderr)[-500:])}
        return dict(map(outcome, xml.etree.ElementTree.parse(report).iter("testcase")))


def outcome(case: xml.etree.ElementTree.Element) -> tuple[str, tuple[str, str]]:
    """A test's name as pytest takes it, and what became of it."""
    *folders, file, group = case.get("classname", "").split(".")
    name = f"{'/'.join([*folders, file])}.py::{group}::{case.get('name')}"
    for kind in ("failure", "error"):
        if (element := case.find(kind)) is not None:
            return name, ("failed", f"{element.get('message')}\n{element.text}")
    return name, ("passed" if case.find("skipped") is None else "skipped", "")


def last_error(text: str) -> str:
    """The line that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line]
    return (lines or text.strip().splitlines() or [""])[-1][:200]


def main(
    checkout: Path,
    only: Annotated[tuple[str, ...], "files with one of these in their name"] = ("",),
    devices: int = 2,
    limit: Annotated[float, "seconds for a file"] = 1200,
) -> None:
    totals: Counter[str] = Counter()
    ours: list[str] = []
    for file in sorted(checkout.glob("tests/**/test_*.py")):
        tests = str(file.relative_to(checkout))
        if not any(name in tests for name in only):
            continue
        outcomes = run(checkout, [tests], [f"--npu-sim={devices}"], limit)
        counts = Counter(kind for kind, _ in outcomes.values())
        failed = {name: why for name, (kind, why) in outcomes.items() if kind == "failed"}
        wants_hub = {name for name, why in failed.items() if any(word in why for word in OFFLINE)}
        again = [name for name in failed if name not in wants_hub]
        on_cpu = run(checkout, again, [], limit) if again else {}
        only_here = [name for name in again if on_cpu.get(name, ("", ""))[0] != "failed"]
        counts.update({"wants a hub": len(wants_hub), "only here": len(only_here)})
        ours += [f"{name}: {last_error(failed[name])}" for name in only_here]
        totals += counts
        print(f"{tests}: {dict(counts)}", flush=True)
    if not totals:
        raise SystemExit(f"{checkout} has none of these tests of accelerate.")
    print(f"accelerate {version('accelerate')}, {devices} simulated NPUs: {dict(totals)}")
    print("\n".join(ours))
    sys.exit(len(ours) > 0)
