"""Run torch_npu's own public tests, unmodified, on the simulated NPU.

    python benchmarks/torch_npu_suite.py CHECKOUT [FOLDER…] [--jobs 2] [--limit 300] [--json results.json]

CHECKOUT is a checkout of torch_npu's sources; its folder test/ is run, each file in a process of its own.
A test that ends the interpreter counts as crashed, one that outlasts the limit as failed; the rest of its file
is then run in a new process. Folders that need what is not simulated are named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDERS = ("nn", "optim", "contrib", "test_*.py", "npu", "custom_ops", "distributed")
LEFT_OUT = {
    "_inductor": "compiles for real hardware",
    "dynamo": "compiles for real hardware",
    "profiler": "profiles real hardware",
    "aclgraph": "graph capture is not simulated",
    "npugraph": "graph capture is not simulated",
    "graph_tree": "graph capture is not simulated",
    "flexattention": "compiles for real hardware",
    "dvm": "compiles for real hardware",
    "shmem": "needs the links of real hardware",
}
DEVICES = 8
RESULTS_VARIABLE = "TORCH_NPU_SUITE_RESULTS"


# pytest loads this file as a plugin too (-p torch_npu_suite): every result is written at once, so that a crash loses none.
def _note(**fields: object) -> None:
    if path := os.environ.get(RESULTS_VARIABLE):
        with open(path, "a") as file:
            file.write(json.dumps(fields) + "\n")


def pytest_collection_finish(session) -> None:  # type: ignore[no-untyped-def]
    _note(collected=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(started=nodeid)


def pytest_runtest_logreport(report) -> None:  # type: ignore[no-untyped-def]
    if report.failed:
        _note(test=report.nodeid, outcome="failed", why=report.longreprtext[-2000:])
    elif report.skipped:
        _note(test=report.nodeid, outcome="skipped", why="")
    elif report.when == "call":
        _note(test=report.nodeid, outcome="passed", why="")


class FileRun:
    """All tests of one file, run in as many processes as crashes demand."""

    def __init__(self, file: Path, limit: float, environment: dict[str, str]) -> None:
        self.file, self.limit, self.environment = file, limit, environment
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.collected: list[str] = []
        self.collection_error = ""

    def run(self) -> FileRun:
        start = time.monotonic()
        while ended_by := self._run_rest():
            test, outcome, why = ended_by
            self.outcomes[test] = (outcome, why)
        count = Counter(outcome for outcome, _ in self.outcomes.values())
        words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items())) or "nothing collected"
        print(f"{self.file.parent.name}/{self.file.name}: {words} ({time.monotonic() - start:.0f} s)", file=sys.stderr)
        return self

    def _run_rest(self) -> tuple[str, str, str] | None:
        """Run what has no outcome yet. Returns the test that ended the process, with outcome and reason, if one did."""
        with tempfile.TemporaryDirectory() as folder:
            results, deselected = Path(folder, "results"), Path(folder, "done.txt")
            results.touch()
            deselected.write_text("\n".join(f"--deselect={name}" for name in self.outcomes))
            command = [sys.executable, "-m", "pytest", "-q", "-p", "torch_npu_suite", "-p", "no:cacheprovider"]
            process = subprocess.Popen(
                [*command, "--rootdir", str(self.file.parent), f"@{deselected}", self.file.name],
                cwd=self.file.parent,
                env=self.environment | {RESULTS_VARIABLE: str(results)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=self.limit)
                ended = f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                ended = f"still running after {self.limit:.0f} s"
            return self._read(results, output, process.returncode, ended)

    def _read(self, results: Path, output: str, code: int, ended: str) -> tuple[str, str, str] | None:
        running = None
        for line in results.read_text().splitlines():
            note = json.loads(line)
            if "collected" in note and not self.collected:
                self.collected = note["collected"]
            elif "started" in note:
                running = note["started"]
            elif "test" in note and self.outcomes.get(note["test"], ("", ""))[0] != "failed":
                self.outcomes[note["test"]] = (note["outcome"], note["why"])
        if not self.collected and code not in (0, 5):
            self.collection_error = output[-2000:]
        if code in (0, 1, 2, 5) or running is None or running in self.outcomes:
            return None
        return running, "failed" if ended.startswith("still") else "crashed", f"{ended}\n{output[-2000:]}"


def find_files(tests: Path, folders: list[str]) -> dict[str, list[Path]]:
    """The test files by folder, without those that need what is not simulated."""
    found = {}
    for folder in folders:
        pattern = folder if folder.endswith(".py") else f"{folder}/**/test_*.py"
        files = sorted(tests.glob(pattern))
        found[folder] = [file for file in files if not any(word in str(file.relative_to(tests)) for word in LEFT_OUT)]
    return found


def print_table(by_folder: dict[str, list[FileRun]]) -> None:
    """One row a folder: collected, passed, failed, skipped, crashed, and the share of what ran that passed."""
    table = Table(title="torch_npu's own tests on the simulated NPU")
    for column in ("folder", "files", "collected", "passed", "failed", "skipped", "crashed", "not importable", "passed of run"):
        table.add_column(column, justify="left" if column == "folder" else "right")
    for folder, runs in by_folder.items():
        count = Counter(outcome for run in runs for outcome, _ in run.outcomes.values())
        ran = count["passed"] + count["failed"] + count["crashed"]
        table.add_row(
            folder,
            str(len(runs)),
            str(sum(len(run.collected) for run in runs)),
            *(str(count[outcome]) for outcome in ("passed", "failed", "skipped", "crashed")),
            str(sum(bool(run.collection_error) for run in runs)),
            f"{count['passed'] / ran:.1%}" if ran else "-",
        )
    Console(width=140).print(table)


def write_json(path: Path, by_folder: dict[str, list[FileRun]]) -> None:
    """Every outcome with its reason, by file."""
    runs = [run for runs in by_folder.values() for run in runs]
    path.write_text(
        json.dumps({str(r.file): {"outcomes": r.outcomes, "collection_error": r.collection_error} for r in runs}, indent=1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folders", nargs="*", default=list(FOLDERS), help="folders of test/, or patterns such as test_*.py")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one file")
    parser.add_argument("--json", type=Path, help="write every outcome and reason here")
    arguments = parser.parse_args()

    from npukit import simulate

    environment = simulate.environment(devices=DEVICES)
    environment["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{environment['PYTHONPATH']}"
    environment.setdefault("OMP_NUM_THREADS", "1")
    files = find_files(arguments.checkout.resolve() / "test", arguments.folders)
    print("Left out: " + "; ".join(f"{word} ({why})" for word, why in LEFT_OUT.items()))
    by_folder = {
        folder: [FileRun(path, arguments.limit, environment) for path in paths] for folder, paths in files.items()
    }
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for runs in by_folder.values():
            for _ in pool.map(FileRun.run, runs):
                if arguments.json:
                    write_json(arguments.json, by_folder)
    print_table(by_folder)


if __name__ == "__main__":
    main()
