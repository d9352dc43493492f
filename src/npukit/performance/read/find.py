"""Find the profiles below the paths that a user names, one per rank."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

from npukit.errors import NpukitError
from npukit.performance.read.ascend_folder import OUTPUT, is_ascend, is_output, read_ascend, read_ascend_file
from npukit.performance.read.kineto import read_kineto
from npukit.performance.read.log import read_log
from npukit.performance.read.model import GARBAGE, Trace
from npukit.performance.read.stream import UnreadableProfile, open_bytes, sentences

TRACES = (".pt.trace.json", ".pt.trace.json.gz", ".json.gz", ".json")
SKIPPED = {"FRAMEWORK", "logs", "node_modules", "cluster_analysis_output"}


def read_profiles(paths: Sequence[Path]) -> list[Trace]:
    """Every rank below these files and folders.

    If there are several profiles, damaged ones are skipped and noted; it is an error if none is left.

    >>> read_profiles([Path("profile")])[0].steps
    """
    traces: list[Trace] = []
    damaged: list[str] = []
    for path in paths:
        if not path.exists():
            raise NpukitError(f"There is no {path}: name a profile, or a folder that holds one.")
        profiles = list(_profiles(path))
        if not profiles:
            raise NpukitError(f"{path} has no profile of torch_npu, msprof or torch.profiler, and no log.jsonl.")
        for profile in profiles:
            try:
                with _without_garbage_collection():
                    read = _read(profile)
                for trace in read:
                    trace.has |= {"gc"} if _records_gc(trace) else set()
                traces += read
            except UnreadableProfile as error:
                damaged.append(str(error))
    if not traces:
        raise NpukitError(damaged[0])
    traces[0].notes += damaged
    return sorted(_distinct(traces), key=lambda trace: trace.rank)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector: scanning millions of live events, none of them in a cycle, takes half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _records_gc(trace: Trace) -> bool:
    if trace.settings.get("gc_detect_threshold", "None") not in ("None", "0", "") or trace.settings.get("npukit_gc"):
        return True
    return any(GARBAGE.match(mark.name) for mark in trace.marks)


def _profiles(path: Path) -> Iterator[Path]:
    """The files and folders to read. A folder of torch_npu counts as one."""
    if path.is_file():
        yield path
        return
    with sentences(path):
        entries = sorted(path.iterdir())
        if is_output(path):
            yield path
            return
    parsed = any(entry.name == OUTPUT for entry in entries)  # written by torch_npu next to the raw data
    for entry in entries:
        if entry.is_dir():
            raw = parsed and entry.name.startswith("PROF_")
            if entry.name not in SKIPPED and not raw and not entry.name.startswith(".") and not entry.is_symlink():
                yield from _profiles(entry)
        elif not entry.is_file():
            continue  # reading a pipe would block
        elif entry.name == "log.jsonl" or (entry.name.endswith(TRACES) and _is_trace(entry)):
            yield entry


def _is_trace(path: Path) -> bool:
    """Whether a JSON file is a trace, judging by its beginning: folders contain other JSON files as well."""
    try:
        with sentences(path), open_bytes(path) as file:
            head = file.read(1 << 18)
        return any(word in head for word in (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"'))
    except UnreadableProfile:
        return path.name.endswith((".pt.trace.json", ".pt.trace.json.gz"))


def _read(path: Path) -> list[Trace]:
    if path.is_dir():
        return read_ascend(path)
    if path.name == "log.jsonl" or path.suffix == ".jsonl":
        return [read_log(path)]
    if path.suffix in (".db", ".csv") or is_ascend(path.name) or path.name.startswith(("trace_view", "communication")):
        return read_ascend_file(path)
    with sentences(path), open_bytes(path) as file:
        head = file.read(65536)
    listed = head.lstrip().startswith(b"[")
    if listed and b"Ascend Hardware" in head:
        return read_ascend_file(path)
    return [read_kineto(path, listed)]


def _distinct(traces: list[Trace]) -> list[Trace]:
    """Number the ranks that only the order of their files distinguishes."""
    ranks = [trace.rank for trace in traces if trace.format != "log"]
    if len(set(ranks)) < len(ranks):
        for index, trace in enumerate(trace for trace in traces if trace.format != "log"):
            if trace.rank in ranks[:index]:
                trace.rank = max(ranks) + 1
            ranks[index] = trace.rank
    return traces
