"""Find the files in a folder, or a part of one, that torch_npu's profiler or msprof wrote, and combine them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npukit.performance.read import ascend_csv, ascend_db, ascend_json
from npukit.performance.read.lines import read_script
from npukit.performance.read.model import Trace
from npukit.performance.read.stream import UnreadableProfile, json_whole
from npukit.performance.read.values import whole

OUTPUT = "ASCEND_PROFILER_OUTPUT"
DATABASE = re.compile(r"(?:ascend_pytorch_profiler(?:_(\d+))?|msprof_\d+)\.db$")
# By file name (msprof adds a timestamp), in this order: kernels first, then
# details about them.
READERS: tuple[tuple[re.Pattern[str], Callable[[Path, Trace], None]], ...] = (
    (re.compile(r"kernel_details\.csv$|op_summary(_slice_\d+)?(_\d+)*\.csv$"), ascend_csv.read_kernels),
    (re.compile(r"trace_view\.json$|msprof(_slice_\d+)?(_\d+)*\.json$"), ascend_json.read_trace_view),
    (re.compile(r"communication\.json$"), ascend_json.read_communication),
    (re.compile(r"communication_matrix\.json$"), ascend_json.read_matrix),
    (re.compile(r"step_trace_time\.csv$"), ascend_csv.read_step_time),
    (re.compile(r"api_statistic(_\d+)?\.csv$"), ascend_csv.read_api_statistic),
    (re.compile(r"memory_record\.csv$"), ascend_csv.read_memory),
)
KERNELS = READERS[0][0]
OTHERS = {"analysis.db", "operator_details.csv", "operator_memory.csv", "npu_module_mem.csv"}


def is_ascend(name: str) -> bool:
    """Whether a file with this name belongs to torch_npu's profiler or msprof.

    >>> is_ascend("op_summary_20250102030405.csv")
    True
    """
    return name in OTHERS or bool(DATABASE.match(name)) or any(pattern.match(name) for pattern, _ in READERS)


def is_output(folder: Path) -> bool:
    """Whether a folder contains files of torch_npu's profiler or msprof."""
    return any(is_ascend(path.name) for path in folder.iterdir() if path.is_file())


def read_ascend(folder: Path) -> list[Trace]:
    """The ranks in a folder: one per database if there are several, otherwise one per card.

    >>> read_ascend(Path("host_123_ascend_pt/ASCEND_PROFILER_OUTPUT"))[0].rank
    0
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    databases = [path for path in files if DATABASE.match(path.name)]
    if len(databases) > 1 and not any(KERNELS.match(path.name) for path in files):
        return [trace for path in databases for trace in by_card(_read_files(folder, [path]))]
    return by_card(_read_files(folder, files))


def _read_files(folder: Path, files: list[Path]) -> Trace:
    """One trace from these files. A damaged file is skipped and noted."""
    trace = Trace(folder, "torch_npu")
    _attempt(trace, folder, _read_information)
    trace.script = read_script(folder, trace.rank, base=0)
    database = next((path for path in files if DATABASE.match(path.name)), None)
    if database:
        trace.rank = _rank_of(database, trace.rank)
        if not any(KERNELS.match(path.name) for path in files):
            _attempt(trace, database, ascend_db.read_database)
    for pattern, reader in READERS:
        for path in files:
            if pattern.match(path.name):
                _attempt(trace, path, reader)
    if not trace.given and folder / "analysis.db" in files:
        _attempt(trace, folder / "analysis.db", ascend_db.read_analysis)
    if trace.script and trace.has:
        trace.has.add("script")
    if not trace.has:
        raise UnreadableProfile(" ".join(trace.notes) or f"{folder} contains no profile that could be read.")
    return trace


def by_card(trace: Trace) -> list[Trace]:
    """Split a trace by card. All share the host's side, and a card's number serves as its rank."""
    cards = sorted({kernel.card for kernel in trace.kernels if kernel.card is not None})
    if len(cards) < 2:
        return [trace]
    traces = []
    for card in cards:
        kernels = [kernel for kernel in trace.kernels if kernel.card in (card, None)]
        traces.append(dataclasses.replace(trace, rank=card, kernels=kernels, has=set(trace.has), notes=[]))
    traces[0].notes = trace.notes
    return traces


def read_ascend_file(path: Path) -> list[Trace]:
    """A single file of torch_npu's profiler or msprof."""
    trace = Trace(path, "torch_npu")
    if path.suffix == ".db":
        trace.rank = _rank_of(path, 0)
        ascend_db.read_database(path, trace)
    else:
        known = (reader for pattern, reader in READERS if pattern.match(path.name))
        other = ascend_csv.read_kernels if path.name.startswith("kernel_details") else ascend_json.read_trace_view
        next(known, other)(path, trace)
    if not trace.has:
        raise UnreadableProfile(f"{path} contains no profile that could be read.")
    return by_card(trace)


def _rank_of(database: Path, otherwise: int) -> int:
    """The rank in a database's name. In names of msprof, the number is a timestamp."""
    match = DATABASE.match(database.name)
    return int(match[1]) if match and match[1] else otherwise


def _attempt(trace: Trace, path: Path, reader: Callable[[Path, Trace], None]) -> None:
    try:
        reader(path, trace)
    except UnreadableProfile as error:
        trace.notes.append(str(error))


def _read_information(folder: Path, trace: Trace) -> None:
    """The settings and the rank, from files next to the output."""
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
    trace.rank = rank if rank is not None else int(match[1]) if match else 0


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
