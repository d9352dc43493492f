"""The log files of torchrun's ranks. torch 2.3 and later has an interface for them; older versions are patched."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from npukit.launch.failure import Failure
from npukit.launch.script import DONE, ERROR_FILE

try:
    from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
except ImportError:  # before 2.3

    @dataclass
    class LogsDest:  # type: ignore[no-redef]
        """The files of each rank of this node."""

        stdouts: dict[int, str]
        stderrs: dict[int, str]
        tee_stdouts: dict[int, str]
        tee_stderrs: dict[int, str]
        error_files: dict[int, str]

    class LogsSpecs:  # type: ignore[no-redef]
        """torch's interface for the files of each rank."""

        def __init__(self, folder: str | None) -> None:
            self._root_log_dir = folder


class RankLogs(LogsSpecs):
    """Ranks write rankN.log and rankN.error in one folder, after a restart in a folder below it."""

    def __init__(self, folder: str | None, errors: Path) -> None:
        super().__init__(folder)
        self.logs: dict[int, str] = {}  # by rank
        self._marks: dict[int, Path] = {}  # of ranks whose script has finished, although they may still be running
        self._restarts = 0
        self._errors = errors

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        # torchrun does not count a restart by another node, whose log would overwrite the first.
        folder = self._errors / f"restart{self._restarts}" if self._restarts else self._errors
        self._restarts += 1
        folder.mkdir(parents=True, exist_ok=True)
        ranks = {local: int(env["RANK"]) for local, env in envs.items()}
        errors = {local: str(folder / f"rank{rank}.error") for local, rank in ranks.items()}
        self._marks = {rank: Path(errors[local]).with_suffix(DONE) for local, rank in ranks.items()}
        self.remove_marks()
        for local, env in envs.items():
            Path(errors[local]).unlink(missing_ok=True)
            env[ERROR_FILE] = errors[local]
        terminal = dict.fromkeys(envs, "")
        if self._root_log_dir is None:
            return LogsDest(terminal, terminal, {}, {}, errors)
        logs = {local: str(folder / f"rank{rank}.log") for local, rank in ranks.items()}
        self.logs = {rank: logs[local] for local, rank in ranks.items()}
        return LogsDest(logs, terminal, {0: logs[0]}, {}, errors)

    def is_done(self, rank: int) -> bool:
        """Whether the script of a rank has finished."""
        return self._marks[rank].exists()

    def remove_marks(self) -> None:
        for mark in self._marks.values():
            mark.unlink(missing_ok=True)

    def keep(self, failure: Failure) -> None:
        """Append the traceback that a rank passed on to its log."""
        if failure.log and failure.kind == "traceback":
            with Path(failure.log).open("a") as log:
                log.write(failure.text)


class Started:
    """The ranks that torchrun started last on this node."""

    def __init__(self) -> None:
        self._context: Any = None

    def keep(self, context: Any) -> Any:
        """Store the ranks, and make torchrun wake stopped ones before ending them: they would ignore its signal."""
        close = context._close

        def wake_and_close(*args: Any, **kwargs: Any) -> None:
            for handler in context.subprocess_handlers.values():
                handler.proc.send_signal(signal.SIGCONT)  # no effect if it has ended
            close(*args, **kwargs)

        context._close = wake_and_close
        self._context = context
        return context

    def left(self, logs: RankLogs) -> list[tuple[int, str]]:
        """The ranks that had ended with exit code 0, or were about to, when another failed, and their logs."""
        context = self._context
        if context is None:
            return []
        ended = {local for local, handler in context.subprocess_handlers.items() if handler.proc.returncode == 0}
        ranks = {local: int(context.envs[local]["RANK"]) for local in context.subprocess_handlers}
        done = {local for local, rank in ranks.items() if logs.is_done(rank)} | ended - context._running_local_ranks
        return [(ranks[local], logs.logs.get(ranks[local], "")) for local in sorted(done)]


def use(logs: RankLogs, config: Any, spare: str) -> Started:
    """Make the ranks of this configuration write there; an older torchrun makes its own folders in `spare`."""
    agent: Any = local_elastic_agent
    started, torchs_own = Started(), agent.start_processes

    def start_processes(name: str, entrypoint: str, args: Any, envs: dict[int, dict[str, str]], **others: Any) -> Any:
        if hasattr(config, "logs_specs"):
            return started.keep(torchs_own(name, entrypoint, args, envs, **others))
        context = SubprocessContext(name, entrypoint, args, envs, **vars(logs.reify(envs)))
        context.start()
        return started.keep(context)

    if hasattr(config, "logs_specs"):
        config.logs_specs = logs
    else:
        config.log_dir = spare
    agent.start_processes = start_processes
    return started
