"""torchrun with an ear: takes torchrun's arguments, and when a rank fails on any node, ends all and explains the first.

Run as `python -m npukit.launch.agent TORCHRUN_ARGUMENTS`. With --log-dir every rank writes FOLDER/rankN.log and the
first rank of the node is shown as well; without it all ranks write to the terminal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from npukit.children import die_with
from npukit.launch.failure import Failure, first, read_failure, report
from npukit.launch.other_nodes import OtherNodes
from npukit.launch.script import ERROR_FILE, LAUNCHER, ONE_LOG
from npukit.report.unfinished import temporary_folder


class RankLogs(LogsSpecs):
    """Where ranks write: rankN.log and rankN.error in one folder; a restart writes to a folder below."""

    def __init__(self, folder: str | None, errors: Path) -> None:
        super().__init__(folder)
        self.logs: dict[int, str] = {}  # by rank
        self._restarts = 0
        self._errors = errors

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        # torchrun does not count a restart that another node asked for: its log would overwrite the first.
        folder = self._errors / f"restart{self._restarts}" if self._restarts else self._errors
        self._restarts += 1
        folder.mkdir(parents=True, exist_ok=True)
        ranks = {local: int(env["RANK"]) for local, env in envs.items()}
        errors = {local: str(folder / f"rank{rank}.error") for local, rank in ranks.items()}
        for local, env in envs.items():
            Path(errors[local]).unlink(missing_ok=True)
            env[ERROR_FILE] = errors[local]
        terminal = dict.fromkeys(envs, "")
        if self._root_log_dir is None:
            return LogsDest(terminal, terminal, {}, {}, errors)
        logs = {local: str(folder / f"rank{rank}.log") for local, rank in ranks.items()}
        self.logs = {rank: logs[local] for local, rank in ranks.items()}
        return LogsDest(logs, terminal, {0: logs[0]}, {}, errors)

    def keep(self, failure: Failure) -> None:
        """Write the traceback that a rank handed over to the end of its log."""
        if failure.log and failure.kind == "traceback":
            with Path(failure.log).open("a") as log:
                log.write(failure.text)


def main() -> None:
    if parent := os.environ.get(LAUNCHER):
        die_with(int(parent))
    arguments: Any = parse_args(sys.argv[1:])  # type: ignore[no-untyped-call]
    with contextlib.nullcontext(arguments.log_dir) if arguments.log_dir else temporary_folder("launch") as errors:
        code = _launch(arguments, RankLogs(arguments.log_dir, Path(errors)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that waits for another node's store would keep the interpreter from ending


def _launch(arguments: Any, logs: RankLogs) -> int:
    """Start the ranks, wait for their end and say why they failed; returns the exit code."""
    if arguments.standalone:
        arguments.rdzv_backend, arguments.rdzv_endpoint, arguments.rdzv_id = "c10d", "localhost:0", str(os.getpid())
    os.environ[LAUNCHER] = str(os.getpid())
    if arguments.log_dir:
        os.environ[ONE_LOG] = "1"
        os.environ.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank ${rank}] ")
    logging.disable(logging.ERROR)  # what torchrun says of a failure is said better below
    arguments.log_dir = os.devnull  # torchrun would make a folder of its own, and leave it there
    config, command, command_arguments = config_from_args(arguments)
    config.logs_specs = logs
    nodes = config.max_nodes
    others = OtherNodes(config.rdzv_endpoint, arguments.node_rank, nodes) if nodes > 1 else None
    try:
        try:
            elastic_launch(config, command)(*command_arguments)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself from here
        return 0
    except ChildFailedError as error:
        mine = [
            read_failure(rank, arguments.node_rank, failure.exitcode, failure.error_file, logs.logs.get(rank, ""))
            for rank, failure in error.failures.items()
        ]
        for failure in mine:
            logs.keep(failure)
    except SignalException as stopped:
        mine = []
        if others is None or not others.have_failed:
            if others:
                others.exchange([Failure(-1, arguments.node_rank, time.time(), -stopped.sigval, "")])
            return 128 + stopped.sigval
    return _say(others.exchange(mine) if others else mine, nodes)


def _say(failures: list[Failure], nodes: int) -> int:
    if not failures:
        print("\nnpukit: node 0 is gone, and the job with it; the output on node 0 says why.", file=sys.stderr)
        return 1
    failure = first(failures)
    if failure.kind == "sentence":
        print(failure.text, file=sys.stderr)
        return failure.exit_code
    if failure.ended_by_signal:  # it has said so itself
        return failure.exit_code
    print(report(failure, nodes), end="", file=sys.stderr)
    return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    main()
