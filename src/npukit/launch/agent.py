"""torchrun with explanations: when a rank fails on any node, it ends all ranks and explains the first failure.

It is run as `python -m npukit.launch.agent TORCHRUN_ARGUMENTS`. With --log-dir every rank writes FOLDER/rankN.log and
the first rank of the node is shown as well; without it all ranks write to the terminal.
"""

# ruff: noqa: E402
from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from npukit.launch.imports import quicken_imports

if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # nothing has begun that would have to be ended
        signal.signal(number, lambda number, _: os._exit(128 + number))
quicken_imports()  # before the first line that imports torch

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from npukit.children import die_with
from npukit.launch.failure import Failure, first, read_failure, report
from npukit.launch.one_machine import LOOPBACK, stay_on_this_machine
from npukit.launch.other_nodes import OtherNodes
from npukit.launch.rank_logs import RankLogs, use
from npukit.launch.script import LAUNCHER, ONE_LOG
from npukit.report.result import error_data, hand_back
from npukit.report.terminal import say
from npukit.report.unfinished import temporary_folder


def main() -> None:
    if parent := os.environ.get(LAUNCHER):
        die_with(int(parent))
    arguments: Any = parse_args(sys.argv[1:])  # type: ignore[no-untyped-call]
    with temporary_folder("launch") as spare:
        logs = RankLogs(arguments.log_dir, Path(arguments.log_dir or spare))
        code = _launch(arguments, logs, str(spare))
        logs.remove_marks()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread waiting for another node's store would keep the interpreter alive


def _launch(arguments: Any, logs: RankLogs, spare: str) -> int:
    """Start the ranks, wait for them and report why they failed; returns the exit code."""
    if arguments.standalone:
        arguments.rdzv_backend, arguments.rdzv_endpoint, arguments.rdzv_id = "c10d", "localhost:0", str(os.getpid())
        arguments.local_addr = LOOPBACK
        stay_on_this_machine()
    os.environ[LAUNCHER] = str(os.getpid())
    if arguments.log_dir:
        os.environ[ONE_LOG] = "1"
        os.environ.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank ${rank}] ")
    logging.disable(logging.ERROR)  # torchrun's report of a failure is replaced by the one below
    arguments.log_dir = os.devnull  # otherwise torchrun makes a temporary folder and leaves it there
    config, command, command_arguments = config_from_args(arguments)
    started = use(logs, config, spare)
    nodes = config.max_nodes
    others = OtherNodes(config.rdzv_endpoint, arguments.node_rank, nodes) if nodes > 1 else None
    try:
        try:
            elastic_launch(config, command)(*command_arguments)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending already
        return 0
    except ChildFailedError as error:
        own_failures = [
            read_failure(rank, arguments.node_rank, failure.exitcode, failure.error_file, logs.logs.get(rank, ""))
            for rank, failure in error.failures.items()
        ]
        for failure in own_failures:
            logs.keep(failure)
        own_failures += [
            Failure(rank, arguments.node_rank, time.time(), 0, "", log) for rank, log in started.left(logs)
        ]
    except SignalException as stopped:
        own_failures = []
        if others is None or not others.have_failed:
            if others:
                others.exchange([Failure(-1, arguments.node_rank, time.time(), -stopped.sigval, "")])
            return 128 + stopped.sigval
    return _say(others.exchange(own_failures) if others else own_failures, nodes)


def _say(failures: list[Failure], nodes: int) -> int:
    if not failures:
        say("node 0 has stopped, and the job with it; the output on node 0 says why.")
        return 1
    failure = first(failures)
    if failure.kind == "sentence":
        print(failure.text, file=sys.stderr)
        return failure.exit_code
    if failure.ended_by_signal:  # it has reported that itself
        return failure.exit_code
    print(report(failure, nodes), end="", file=sys.stderr)
    last = failure.text.strip().rpartition("\n")[2]
    hand_back("error", {**error_data("failed", last), "rank": failure.rank, "log": failure.log or None})
    return 1


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    main()
