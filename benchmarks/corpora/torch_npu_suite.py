"""Run torch_npu's own public tests, unmodified, on the simulated NPU.

    python -m benchmarks torch_npu_suite CHECKOUT [FOLDER…] [--jobs 2] [--limit 300] [--test-limit 90]
        [--json results.json] [--resume]

CHECKOUT is a checkout of torch_npu's sources; its folder test/ is run, each file in a process of its own. A test that
ends the interpreter counts as crashed, one that outlasts --test-limit or wants more memory than the host has as failed;
the rest of its file is then run in a new process. What a file has not reached within its limit is counted as such.
With --resume, files whose results are in the JSON file already are not run again.
Tests that torch_npu itself lists as failing on real hardware (test/unsupported_test_cases) are left out, and so are
folders that need what is not simulated; both are counted or named. Functions whose arguments only their own script can
give are no tests.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.spawn
import multiprocessing.util
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from npukit import simulate

FOLDERS = ("nn", "optim", "contrib", "test_*.py", "npu", "custom_ops", "profiler", "distributed")
LEFT_OUT = {
    "_inductor": "compiles for real hardware",
    "dynamo": "compiles for real hardware",
    "flexattention": "compiles for real hardware",
    "dvm": "compiles for real hardware",
    "shmem": "needs the links of real hardware",
}
DEVICES = 8
SLOW_IMPORTS = [
    "torch_npu.testing",
    "torch_npu.testing.common_distributed",
    "torch.testing._internal.common_fsdp",
    "torch.testing._internal.distributed._tensor.common_dtensor",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
]
RESULTS_VARIABLE = "TORCH_NPU_SUITE_RESULTS"
LIST_VARIABLE = "TORCH_NPU_SUITE_KNOWN_TO_FAIL"


# This module is a pytest plugin too: every result is written at once, so that a crash loses none.
def _note(**fields: object) -> None:
    if path := os.environ.get(RESULTS_VARIABLE):
        with Path(path).open("a") as file:
            file.write(json.dumps(fields) + "\n")


def pytest_collection_modifyitems(items) -> None:  # type: ignore[no-untyped-def]
    known_to_fail = json.loads(Path(os.environ[LIST_VARIABLE]).read_text())
    listed = [item for item in items if item.cls and f"{item.name} (__main__.{item.cls.__name__})" in known_to_fail]
    _note(listed=len(listed))
    items[:] = [item for item in items if item not in set(listed) and not _needs_arguments(item)]


def _needs_arguments(item) -> bool:  # type: ignore[no-untyped-def]
    """Whether only the script that it stands in can call it: it takes what is no fixture."""
    info = getattr(item, "_fixtureinfo", None)
    return bool(info and set(info.argnames) - set(info.name2fixturedefs) - {"request"})


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


class _Environment:
    """Carries this process's variables over to the one that unpickles it."""

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return exec, (f"import os; os.environ.update({dict(os.environ)})", {})


def spawn_by_fork_server() -> None:
    """Let 'spawn' start ranks as forks of a server that has imported what they import: 8 CPU seconds less for each.

    The server is itself a fork of this process, made before a test has used a device.
    """
    prepare = multiprocessing.spawn.get_preparation_data
    multiprocessing.spawn.get_preparation_data = lambda name: prepare(name) | {"environment": _Environment()}
    multiprocessing.context.SpawnProcess._Popen = staticmethod(multiprocessing.context.ForkServerProcess._Popen)  # type: ignore
    multiprocessing.forkserver.set_forkserver_preload(SLOW_IMPORTS)
    multiprocessing.resource_tracker.ensure_running()
    execute, multiprocessing.util.spawnv_passfds = multiprocessing.util.spawnv_passfds, _fork_and_run
    multiprocessing.forkserver.ensure_running()
    multiprocessing.util.spawnv_passfds = execute


def _fork_and_run(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Run what `python -c` would in a fork of this process."""
    if child := os.fork():
        return child
    exec(args[-1], {})
    os._exit(0)


def pytest_configure() -> None:
    spawn_by_fork_server()


class FileRun:
    """All tests of one file, each run in a fork of this process, which has imported what they all import."""

    def __init__(self, file: Path, tests: Path, limit: float, test_limit: float) -> None:
        self.file, self.tests, self.limit, self.test_limit = file, tests, limit, test_limit
        self.uses_port = "distributed" in file.relative_to(tests).parts
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.collected: list[str] = []
        self.collection_error = ""
        self.listed = 0
        self.seconds = 0.0
        self.done = False

    def restore(self, kept: dict[str, Any]) -> None:
        """Take what an earlier run of this script wrote as the result."""
        self.outcomes, self.collection_error, self.listed = kept["outcomes"], kept["collection_error"], kept["listed"]
        self.collected, self.done = [""] * kept["collected"], True

    def start(self) -> int:
        """Run what has no outcome yet, in a new process. Returns its number."""
        from torch.testing._internal import common_utils  # imported here, so once for all: tests wait for it longest

        self.started = time.monotonic()
        self.folder = tempfile.TemporaryDirectory()
        self.results, self.output = Path(self.folder.name, "results"), Path(self.folder.name, "output")
        self.results.touch()
        if child := os.fork():
            return child
        os.setsid()
        os.chdir(self.file.parent)
        sys.path[:0] = [str(self.file.parent), str(self.tests)]
        os.environ[RESULTS_VARIABLE] = str(self.results)
        output = os.open(self.output, os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        done = [f"--deselect={name}" for name in self.outcomes]
        # pytest would format what torch logs, and some of it is no message to format.
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:logging", "--rootdir", str(self.file.parent)]
        if "os.environ" in self.file.read_text().partition("import torch")[0]:  # it sets the stage before the import
            os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
            plugin = ["-m", "pytest", "-p", Path(__file__).stem]
            os.execv(sys.executable, [sys.executable, *plugin, *options, *done, self.file.name])
        sys.argv = [self.file.name]
        if hasattr(common_utils, "parse_cmd_line_args"):  # older ones do it when they are imported
            common_utils.parse_cmd_line_args()  # type: ignore[no-untyped-call] # as tests do that run themselves
        os._exit(pytest.main([*options, *done, self.file.name], plugins=[sys.modules[__name__]]))

    def overdue(self) -> bool:
        """Whether its time is up, or that of the test it is at (the last thing it noted is long ago)."""
        at_this_test = time.time() - self.results.stat().st_mtime
        return self.seconds + time.monotonic() - self.started > self.limit or at_this_test > self.test_limit

    def finish(self, child: int, status: int) -> bool:
        """Take in what the process found out. True if it ended in the middle of a test and there is a rest to run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what tests may have left running
        overdue = self.overdue()
        self.seconds += time.monotonic() - self.started
        code = os.waitstatus_to_exitcode(status)
        running = self._read_results()
        output = self.output.read_text(errors="replace")[-2000:] if self.output.exists() else ""
        self.folder.cleanup()
        if not self.collected and code not in (0, 5):
            self.collection_error = output or f"ended with {code} before it collected a test"
        if running is None or running in self.outcomes or self.seconds > self.limit:
            return False
        killed = overdue or code == -signal.SIGKILL  # by this script, or by a host without memory for it
        self.outcomes[running] = ("failed" if killed else "crashed", f"ended with {code}\n{output}")
        return len(self.outcomes) < len(self.collected)

    def _read_results(self) -> str | None:
        """Note all outcomes, and return the test that was started last."""
        running = None
        for line in self.results.read_text().splitlines():
            note = json.loads(line)
            if "listed" in note:
                self.listed = note["listed"]
            elif "collected" in note:
                self.collected = self.collected or note["collected"]
            elif "started" in note:
                running = note["started"]
            elif self.outcomes.get(note["test"], ("", ""))[0] != "failed":
                self.outcomes[note["test"]] = (note["outcome"], note["why"])
        return running

    def __str__(self) -> str:
        count = Counter(outcome for outcome, _ in self.outcomes.values())
        words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
        summary = words or ("not importable" if self.collection_error else "no tests")
        return f"{self.file.parent.name}/{self.file.name}: {summary} ({self.seconds:.0f} s)"


def run_all(runs: list[FileRun], jobs: int) -> Iterator[FileRun]:
    """Run them, a few at a time; yields each when it is done. Of those that share a port, one at a time."""
    waiting, active = deque(runs), dict[int, FileRun]()
    while waiting or active:
        port_is_taken = any(run.uses_port for run in active.values())
        ready = next((run for run in waiting if not (run.uses_port and port_is_taken)), None)
        if ready and len(active) < jobs:
            waiting.remove(ready)
            active[ready.start()] = ready
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            run = active.pop(child)
            if run.finish(child, status):
                waiting.appendleft(run)
            else:
                yield run
        else:
            for child, run in active.items():
                if run.overdue():
                    os.killpg(child, signal.SIGKILL)
            time.sleep(0.05)


def find_files(tests: Path, folders: list[str]) -> dict[str, list[Path]]:
    """The test files by folder, without those that need what is not simulated."""
    chosen = {}
    for folder in folders:
        pattern = folder if folder.endswith(".py") else f"{folder}/**/test_*.py"
        files = sorted(tests.glob(pattern))
        chosen[folder] = [file for file in files if not any(word in str(file.relative_to(tests)) for word in LEFT_OUT)]
    return chosen


def print_table(by_folder: dict[str, list[FileRun]]) -> None:
    """One row a folder: collected, passed, failed, skipped, crashed, and the share of what ran that passed."""
    table = Table(title="torch_npu's own tests on the simulated NPU")
    columns = ("folder", "files", "listed as failing", "collected", "passed", "failed", "skipped", "crashed")
    for column in (*columns, "not reached", "not importable", "passed of run"):
        table.add_column(column, justify="left" if column == "folder" else "right")
    for folder, runs in by_folder.items():
        count = Counter(outcome for run in runs for outcome, _ in run.outcomes.values())
        ran = count["passed"] + count["failed"] + count["crashed"]
        collected = sum(len(run.collected) for run in runs)
        table.add_row(
            folder,
            str(len(runs)),
            str(sum(run.listed for run in runs)),
            str(collected),
            *(str(count[outcome]) for outcome in ("passed", "failed", "skipped", "crashed")),
            str(collected - count.total()),
            str(sum(bool(run.collection_error) for run in runs)),
            f"{count['passed'] / ran:.1%}" if ran else "-",
        )
    Console(width=160).print(table)


def write_json(path: Path, by_folder: dict[str, list[FileRun]]) -> None:
    """Every outcome with its reason, by file; of the files that are done."""
    runs = [run for runs in by_folder.values() for run in runs if run.done]
    path.write_text(
        json.dumps(
            {
                str(run.file): {
                    "listed": run.listed,
                    "collected": len(run.collected),
                    "outcomes": run.outcomes,
                    "collection_error": run.collection_error,
                }
                for run in runs
            },
            indent=1,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument(
        "folders", nargs="*", default=list(FOLDERS), help="folders of test/, or patterns such as test_*.py"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one file")
    parser.add_argument("--test-limit", type=float, default=90, help="seconds for one test; more on a busy machine")
    parser.add_argument("--json", type=Path, help="write every outcome and reason here")
    parser.add_argument("--resume", action="store_true", help="run only what the JSON file has no results of")
    arguments = parser.parse_args()

    tests = arguments.checkout.resolve() / "test"
    os.environ[LIST_VARIABLE] = str(tests / "unsupported_test_cases/.pytorch-disabled-tests.json")
    by_folder = {
        folder: [FileRun(path, tests, arguments.limit, arguments.test_limit) for path in paths]
        for folder, paths in find_files(tests, arguments.folders).items()
    }
    print("Left out: " + "; ".join(f"{word} ({why})" for word, why in LEFT_OUT.items()))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other packages' plugins are not meant
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # tests call torchrun
    simulate.activate(devices=DEVICES)
    # What tests compile is linked with CANN's libraries, which torch_npu's own build leaves in the checkout.
    os.environ["LIBRARY_PATH"] = f"{os.environ['ASCEND_HOME_PATH']}/lib64"
    for name in SLOW_IMPORTS:
        with contextlib.suppress(ImportError):  # what an older torch does not have
            importlib.import_module(name)
    every = [run for runs in by_folder.values() for run in runs]
    kept = json.loads(arguments.json.read_text()) if arguments.resume and arguments.json.exists() else {}
    for run in every:
        if str(run.file) in kept:
            run.restore(kept[str(run.file)])
    for run in run_all([run for run in every if not run.done], arguments.jobs):
        run.done = True
        print(run, file=sys.stderr, flush=True)
        if arguments.json:
            write_json(arguments.json, by_folder)
    print_table(by_folder)


if __name__ == "__main__":
    main()
