"""A folder that torch_npu's profiler wrote, or any part of one: find its files and put them together as one rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npukit.performance.read import ascend_csv, ascend_db, ascend_json
from npukit.performance.read.model import Trace
from npukit.performance.read.stream import UnreadableProfile, json_whole
from npukit.performance.read.values import whole

OUTPUT = "ASCEND_PROFILER_OUTPUT"
DATABASE = re.compile(r"(?:ascend_pytorch_profiler|msprof)(?:_(\d+))?.*\.db$")
# In this order: kernels first, then what is known about them.
READERS: dict[str, Callable[[Path, Trace], None]] = {
    "kernel_details.csv": ascend_csv.read_kernels,
    "trace_view.json": ascend_json.read_trace_view,
    "communication.json": ascend_json.read_communication,
    "communication_matrix.json": ascend_json.read_matrix,
    "step_trace_time.csv": ascend_csv.read_step_time,
    "api_statistic.csv": ascend_csv.read_api_statistic,
    "memory_record.csv": ascend_csv.read_memory,
}
KNOWN = {*READERS, "analysis.db", "operator_details.csv", "operator_memory.csv", "npu_module_mem.csv"}


def is_output(folder: Path) -> bool:
    """Whether a folder holds files of one rank of torch_npu's profiler."""
    return any(path.name in KNOWN or DATABASE.match(path.name) for path in folder.iterdir() if path.is_file())


def read_ascend(folder: Path) -> Trace:
    """One rank from the folder that holds its files; a file that is damaged is left out and noted.

    >>> read_ascend(Path("host_123_ascend_pt/ASCEND_PROFILER_OUTPUT")).rank
    0
    """
    trace = Trace(folder, "torch_npu")
    _attempt(trace, folder, _read_information)
    database = next((path for path in sorted(folder.iterdir()) if DATABASE.match(path.name)), None)
    if database and not (folder / "kernel_details.csv").exists():
        _attempt(trace, database, ascend_db.read_database)
    for name, reader in READERS.items():
        if (path := folder / name).is_file():
            _attempt(trace, path, reader)
    if not trace.given and (folder / "analysis.db").is_file():
        _attempt(trace, folder / "analysis.db", ascend_db.read_analysis)
    if not trace.has:
        raise UnreadableProfile(" ".join(trace.notes) or f"{folder} holds no profile that could be read.")
    return trace


def read_ascend_file(path: Path) -> Trace:
    """One file of torch_npu's profiler alone."""
    trace = Trace(path, "torch_npu")
    reader = ascend_db.read_database if path.suffix == ".db" else READERS.get(path.name, ascend_json.read_trace_view)
    if path.name.startswith("kernel_details"):
        reader = ascend_csv.read_kernels
    reader(path, trace)
    if not trace.has:
        raise UnreadableProfile(f"{path} holds no profile that could be read.")
    return trace


def _attempt(trace: Trace, path: Path, reader: Callable[[Path, Trace], None]) -> None:
    try:
        reader(path, trace)
    except UnreadableProfile as error:
        trace.notes.append(str(error))


def _read_information(folder: Path, trace: Trace) -> None:
    """The settings and the rank, from the files that lie beside the output."""
    around = folder.parent if folder.name == OUTPUT else folder
    rank = None
    for path in sorted(around.glob("profiler_info*.json")):
        information = json_whole(path)
        rank = whole(information.get("rank_id"))
        trace.settings |= _settings(information.get("config"))
        trace.settings |= {
            name: str(information[name]) for name in ("torch_npu_version", "cann_version") if name in information
        }
    for path in sorted(around.glob("profiler_metadata.json")) + sorted(folder.glob("profiler_metadata.json")):
        _metadata(json_whole(path), trace)
    match = re.search(r"rank[-_]?(\d+)", around.name)
    trace.rank = rank if rank is not None else int(match[1]) if match else _rank_of_database(folder)


def _rank_of_database(folder: Path) -> int:
    return next((int(match[1]) for path in folder.iterdir() if (match := DATABASE.match(path.name)) and match[1]), 0)


def _settings(config: Any) -> dict[str, str]:
    settings: dict[str, str] = {}
    for part in config.values() if isinstance(config, dict) else ():
        if isinstance(part, dict):
            settings |= {name.lstrip("_"): str(value) for name, value in part.items()}
    return settings


def _metadata(data: dict[str, Any], trace: Trace) -> None:
    environment, arguments = data.get("ENV_VARIABLES"), data.get("distributed_args")
    if isinstance(environment, dict):
        trace.environment = {str(name): str(value) for name, value in environment.items()}
    if isinstance(arguments, dict):
        trace.world = whole(arguments.get("world_size")) or trace.world
        for name, value in arguments.items():
            if name.endswith("_size") and (size := whole(value)):
                trace.parallel[name.removesuffix("_size").removesuffix("_parallel").removesuffix("_model")] = size
