"""The simulated NPU with every torch and torch_npu that it supports, on this machine.

    python -m benchmarks torch_versions [VERSION...] [--results FOLDER] [--sources REPOSITORY] [--remove]

For each version, in the environment that `--torch-npu VERSION` makes: set-up as at a user's first run, version_check.py
on two simulated cards (DDP against the CPU, transformers' Trainer), npukit's own tests that run on simulated NPUs and,
with --sources (a clone of Ascend/pytorch), torch_npu's own tests as they were when the wheel was built: its folder nn,
and the same few files of the other folders. Prints a row of a Markdown table for each, and which tests failed. What is
done is kept in FOLDER: a run that was interrupted goes on, and --sources adds to an earlier one. PyPI's torch is a CPU
build on some machines and a CUDA build of gigabytes on others; both are used as they come, and --remove deletes each
environment when it is no longer needed.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from benchmarks import ROOT

from npukit.simulate import other_torch, versions

CHECK = "benchmarks/corpora/small_runs/version_check.py"
SUITE = "benchmarks/corpora/torch_npu_suite.py"
NPUKIT = [sys.executable, "-m", "npukit"]
FOLDER = ("nn",)
SAMPLE = (
    *("contrib/test_transfer_to_npu.py", "custom_ops/test_npu_lstm.py", "custom_ops/test_npu_rotary_mul.py"),
    *("distributed/test_all_to_all.py", "distributed/test_allreduce.py"),
    *("npu/test_amp.py", "npu/test_serialization.py", "npu/test_tensors.py", "npu/test_torch_npu.py"),
    *("optim/test_fused_optimizers.py", "profiler/test_npu_profiler.py"),
    *("test_autocast.py", "test_indexing.py", "trans_contiguous/test_combined_views_copy_to_contiguous.py"),
)
"""Files of torch_npu's other folders that every supported version has."""
OWN_TESTS = ("folder nn", "sample of others")
COLUMNS = ("torch_npu", "DDP", "Trainer", "tests/on_npu", *OWN_TESTS, "tests of")
LIMITS = ("--limit", "400", "--test-limit", "90")
LEFT_OUT = "not large_workspace and not issue_120211"
"""Large convolutions: two tests that take minutes on a CPU, and one that is about the CPU."""
WHERE = "from npukit.simulate import build; print(build.plan().torch_npu)"


def run(*command: str | Path) -> tuple[int, str]:
    """Exit code and output of a command."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def last_line(text: str) -> str:
    """The end of what went wrong, short enough for a table."""
    return (text.strip().splitlines() or [""])[-1][:120]


def reason(report: str) -> str:
    """The error that a report of pytest's is about, or how the process ended."""
    errors = re.findall(r"^E +(\S.*)", report, re.MULTILINE)
    return str((errors or report.splitlines() or [""])[0])[:120]


def checked(version: str) -> tuple[str, str]:
    """What version_check.py found: DDP's difference from the CPU, and how the Trainer did."""
    options = ["--device", "sim", "--devices", "2", "--torch-npu", version]
    code, output = run(*NPUKIT, "run", *options, CHECK)
    losses = dict(re.findall(r"^(DDP|Trainer): (.*)$", output, re.MULTILINE))
    return losses.get("DDP", last_line(output)), losses.get("Trainer", f"failed: {last_line(output)}" if code else "")


def tested(version: str) -> tuple[str, list[str]]:
    """How many of npukit's tests passed and failed, and which failed."""
    simulated = ["--npu-sim=2", "--npu-sim-torch-npu", version]
    options = ["-q", "--tb=no", "--continue-on-collection-errors", "-p", "no:cacheprovider", "-p", "no:xdist"]
    _, output = run(sys.executable, "-m", "pytest", *simulated, *options, "tests/on_npu")
    counts = re.search(r"^(.*\d+ (?:passed|failed|error).*?)(?: in [\d.]+s.*)?$", output, re.MULTILINE)
    return counts[1] if counts else last_line(output), re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)


def revision(sources: Path, built_from: str, version: str) -> str:
    """What a wheel was built from, named by its tag; else the newest tag for this minor version; else the newest."""
    git = ["git", "-C", str(sources)]
    described = [*git, "describe", "--tags", "--always"]
    known = subprocess.run([*described, built_from], capture_output=True, text=True)
    if not known.returncode:
        return known.stdout.strip()
    pattern = f"*-pytorch{version.rpartition('.')[0]}.*"
    listed = [*git, "tag", "--sort=-creatordate", "--list", pattern]
    tags = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    return tags[0] if tags else subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()


def tested_by_torch_npu(version: str, tag: str, sources: Path, work: Path) -> dict[str, tuple[str, list[str]]]:
    """By column: how many of torch_npu's own tests passed, and which did not. Every outcome is kept with its reason."""
    archive, outcomes = work / "tests.tar", work / "outcomes.json"
    work.mkdir(exist_ok=True)
    subprocess.run(["git", "-C", sources, "archive", "-o", archive, tag, "test"], check=True)
    shutil.unpack_archive(archive, work)
    options = f"PYTEST_ADDOPTS=-k '{LEFT_OUT}'"
    suite = (
        "env",
        options,
        python_for(version),
        SUITE,
        work,
        *FOLDER,
        *SAMPLE,
        *LIMITS,
    )
    _, output = run(*suite, "--json", outcomes, "--resume")
    if not outcomes.exists():
        return {column: (last_line(output), []) for column in OWN_TESTS}
    files = {
        str(Path(path).relative_to(work / "test")): file for path, file in json.loads(outcomes.read_text()).items()
    }
    shutil.rmtree(work / "test")
    archive.unlink()
    sample = {name: file for name, file in files.items() if name in SAMPLE}
    folder = {name: file for name, file in files.items() if name not in SAMPLE}
    return dict(zip(OWN_TESTS, map(counted, (folder, sample)), strict=True))


def counted(files: dict[str, dict[str, Any]]) -> tuple[str, list[str]]:
    """What torch_npu_suite.py wrote, as a cell of the table and a list of failures."""
    count, failures = Counter[str](), []
    for name, file in files.items():
        if file["collection_error"]:
            failures.append(f"{name}: not importable: {reason(file['collection_error'])}")
        if missed := file["collected"] - len(file["outcomes"]):
            failures.append(f"{name}: {missed} not reached")
        for test, (outcome, why) in file["outcomes"].items():
            count[outcome] += 1
            if outcome in ("failed", "crashed"):
                failures.append(f"{name}::{test.partition('::')[2]} {outcome}: {reason(why)}")
    return f"{count['passed']} of {count.total() - count['skipped']}", failures


def python_for(version: str) -> str:
    """The Python that has this torch."""
    return sys.executable if version == versions.installed() else str(other_torch.environment_python(version))


def row_of(version: str, sources: Path | None, folder: Path, remove: bool) -> dict[str, Any]:
    """The row of this version, of which what is not kept yet is measured now."""
    kept = folder / f"{version}.json"
    row: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"torch_npu": version, "failed": {}}
    missing = [column for column in ("tests/on_npu", *(OWN_TESTS if sources else ())) if column not in row]
    if not missing:
        return row
    code, output = run(*NPUKIT, "sim", "setup", "--torch-npu", version)
    if code:
        return row | {"DDP": f"set-up: {last_line(output)}"}
    wheel = Path(run(python_for(version), "-c", WHERE)[1].strip(), "torch_npu/version.py").read_text()
    facts = dict(re.findall(r"^(\w+) = '(.*)'", wheel, re.MULTILINE))
    row["torch_npu"] = facts["__version__"]
    if "tests/on_npu" in missing:
        row["DDP"], row["Trainer"] = checked(version)
        row["tests/on_npu"], row["failed"]["tests/on_npu"] = tested(version)
        kept.write_text(json.dumps(row, indent=1))
    if sources and OWN_TESTS[0] in missing:
        row["tests of"] = revision(sources, facts["git_version"], version)
        tests = tested_by_torch_npu(version, row["tests of"], sources, folder.resolve() / version)
        for column, (cell, failures) in tests.items():
            row[column], row["failed"][column] = cell, failures
        kept.write_text(json.dumps(row, indent=1))
    if remove and version != versions.installed():
        shutil.rmtree(Path(python_for(version)).parents[1])
    return row


def main(
    only: tuple[str, ...],
    results: Annotated[Path, "folder for what is done"] = Path("torch-versions"),
    sources: Annotated[Path | None, "a clone of torch_npu's repository, for its own tests"] = None,
    remove: Annotated[bool, "delete the environment of each version when it is done"] = False,
) -> None:
    results.mkdir(parents=True, exist_ok=True)
    print(f"{platform.machine()}, Python {platform.python_version()}, {datetime.date.today()}")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for version in only or versions.TESTED:
        row = row_of(version, sources, results, remove)
        print("|", " | ".join(str(row.get(column, "")) for column in COLUMNS), "|", flush=True)
    for kept in sorted(results.glob("*.json")):
        for column, failures in json.loads(kept.read_text())["failed"].items():
            for failure in failures:
                print(f"{kept.stem}, {column}: {failure}")
