"""Make small profiles: the same two ranks as torch_npu's text files, as its database, and as a Kineto trace.

One step of 100 ms: 20 ms of matrix products, 5 ms TransData, then an all-reduce of 16 MB, for which rank 0 waits.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

BEGIN = 1_736_408_883_000_000_000  # ns
MS = 1_000_000
# name, type, core, start and length in ms, shapes, types, formats
KERNELS = [
    ("mm_0", "MatMulV2", "AI_CORE", 0, 10, "1024,1024;1024,1024", "FLOAT;FLOAT", "ND;ND"),
    ("trans_TransData_0", "TransData", "AI_VECTOR_CORE", 12, 5, "32,3,8,8", "FLOAT", "NCHW"),
    ("mm_1", "MatMulV2", "AI_CORE", 20, 10, "1024,1024;1024,1024", "FLOAT;FLOAT", "ND;ND"),
    ("index_0", "Index", "AI_CPU", 30, 5, "64", "INT64", "ND"),
]
ALLREDUCES = {0: [(35, 60), (96, 2)], 1: [(85, 10), (96, 2)]}  # rank: start and length in ms; 16 MB, 160 MB
SIZES = (16.0, 160.0)  # MB


def _us(ms: float) -> str:
    return f"{(BEGIN + round(ms * MS)) // 1000}.{(BEGIN + round(ms * MS)) % 1000:03d}\t"


def text_profile(folder: Path, rank: int = 0, columns: str = "Block Dim") -> Path:
    """A folder as torch_npu writes it at Level1."""
    output = folder / f"host_{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output.parent / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank, "config": {}}))
    arguments = {"world_size": 2, "rank": rank}
    environment = {"ASCEND_LAUNCH_BLOCKING": "1" if rank else ""}
    (output.parent / "profiler_metadata.json").write_text(
        json.dumps({"distributed_args": arguments, "ENV_VARIABLES": environment})
    )
    head = f"Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),{columns}"
    rows = [f"{head},Input Shapes,Input Data Types,Input Formats"]
    for name, kind, core, start, length, shapes, types, formats in KERNELS:
        rows.append(f'5,{name},{kind},{core},{_us(start)},{length * 1000},0,20,"""{shapes}""",{types},{formats}')
    for index, (start, length) in enumerate(ALLREDUCES[rank]):
        name = f"hcom_allReduce__1_{index}_1"
        rows.append(f"5,{name},hcom_allReduce_,COMMUNICATION,{_us(start)},{length * 1000},0,0,N/A,N/A,N/A")
    (output / "kernel_details.csv").write_text("\n".join(rows) + "\n")
    (output / "communication.json").write_text(json.dumps({"step5": {"p2p": {}, "collective": _collectives(rank)}}))
    (output / "trace_view.json").write_text(json.dumps(_trace_view()))
    return output


def _collectives(rank: int) -> dict[str, Any]:
    collectives = {}
    for index, ((start, length), size) in enumerate(zip(ALLREDUCES[rank], SIZES, strict=True)):
        times = {"Start Timestamp(us)": (BEGIN + start * MS) / 1000, "Elapse Time(ms)": length, "Wait Time(ms)": 0}
        link = {"HCCS": {"Transit Size(MB)": size, "Transit Time(ms)": 1.0, "Size Distribution": {str(size): [1, 1]}}}
        collectives[f"hcom_allReduce__1_{index}_1@77"] = {
            "Communication Time Info": times,
            "Communication Bandwidth Info": link,
        }
    return collectives


def _trace_view() -> list[dict[str, Any]]:
    """The host hands the second product over when it has waited for the device."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Python"}},
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "CANN"}},
        {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "Ascend Hardware"}},
    ]
    for number, (ms, until) in enumerate([(0, 0.0), (12, 11.9), (20, 19.9), (30, 22)]):
        stamp = {"pid": 2, "tid": 9, "ts": _us(until).strip()}
        events.append({"ph": "X", "name": "AscendCL@launch", "dur": 10, **stamp})
        events.append({"ph": "s", "cat": "HostToDevice", "id": str(number), "name": "h", **stamp})
        arrival = {"pid": 3, "tid": 2, "ts": _us(ms).strip()}
        events.append({"ph": "f", "cat": "HostToDevice", "id": str(number), "name": "h", **arrival})
    wait = {"pid": 2, "tid": 9, "ts": _us(13).strip(), "dur": 4100}
    events.append({"ph": "X", "name": "AscendCL@aclrtSynchronizeStream", **wait})
    return events


def database(path: Path, rank: int = 0) -> Path:
    """The same as one .db."""
    path.parent.mkdir(parents=True, exist_ok=True)
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    with sqlite3.connect(path) as connection:
        for table, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
        launches = [0.0, 11.9, 19.9, 22.0]
        for number, (name, kind, core, start, length, shapes, types, formats) in enumerate(KERNELS):
            begin = BEGIN + start * MS
            connection.execute("INSERT INTO TASK VALUES (?,?,?,?,0,2)", (begin, begin + length * MS, number, number))
            row = (text(name), number, text(core), text(kind), text(formats), text(types), text(shapes))
            connection.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (?,?,20,?,?,?,?,?,0)", row)
            call = BEGIN + round(launches[number] * MS)
            connection.execute("INSERT INTO CANN_API VALUES (?,?,9,?,?)", (call, call + 10_000, number, text("launch")))
        wait = (BEGIN + 13 * MS, BEGIN + 17 * MS + 100_000, 9, 99, text("aclrtSynchronizeStream"))
        connection.execute("INSERT INTO CANN_API VALUES (?,?,?,?,?)", wait)
        for index, ((start, length), size) in enumerate(zip(ALLREDUCES[rank], SIZES, strict=True)):
            begin = BEGIN + start * MS
            title = text(f"hcom_allReduce__1_{index}_1")
            reduced = (title, begin, begin + length * MS, text("77"), round(size * 250_000), text("hcom_allReduce_"))
            connection.execute("INSERT INTO COMMUNICATION_OP VALUES (?,?,?,?,4,?,?)", reduced)
        connection.execute("INSERT INTO ENUM_HCCL_DATA_TYPE VALUES (4, 'FP32')")
        connection.execute("INSERT INTO RANK_DEVICE_MAP VALUES (?, 0)", (rank,))
        connection.execute("INSERT INTO STEP_TIME VALUES (5, ?, ?)", (BEGIN - 5 * MS, BEGIN + 98 * MS))
        named = [(identity, value) for value, identity in strings.items()]
        connection.executemany("INSERT INTO STRING_IDS VALUES (?,?)", named)
    return path


_TABLES = {
    "STRING_IDS": "id, value",
    "TASK": "startNs, endNs, connectionId, globalTaskId, taskType, streamId",
    "COMPUTE_TASK_INFO": "name, globalTaskId, blockDim, taskType, opType, inputFormats, inputDataTypes, inputShapes, x",
    "CANN_API": "startNs, endNs, globalTid, connectionId, name",
    "COMMUNICATION_OP": "opName, startNs, endNs, groupName, dataType, count, opType",
    "ENUM_HCCL_DATA_TYPE": "id, name",
    "RANK_DEVICE_MAP": "rankId, deviceId",
    "STEP_TIME": "id, startNs, endNs",
}


def kineto_trace(path: Path, loader_ms: int = 30, steps: int = 3, varying: bool = False, slower: int = 1) -> Path:
    """A CUDA trace: each step waits for its batch, then reads a value after its only product."""
    events: list[dict[str, Any]] = []

    def span(category: str, name: str, start: float, length: float, **args: Any) -> None:
        stamp = {"pid": 1, "tid": 7 if category == "kernel" else 1, "ts": start * 1000, "dur": length * 1000}
        events.append({"ph": "X", "cat": category, "name": name, "args": args, **stamp})

    for step in range(steps):
        at, rows = step * 100, 64 * (step + 1) if varying else 64
        span("user_annotation", f"ProfilerStep#{step}", at, 100)
        span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, loader_ms)
        dims, types = [[rows, 512], [512, 512]], ["float", "float"]
        span("cpu_op", "aten::mm", at + 40, 1, **{"External id": step, "Input Dims": dims, "Input type": types})
        span("cuda_runtime", "cudaLaunchKernel", at + 40.2, 0.1, correlation=step)
        span("python_function", "train.py(7): train", at + 39, 55)
        span("kernel", "sgemm_128", at + 41, 30 * slower, **{"correlation": step, "External id": step, "stream": 7})
        span("cuda_runtime", "cudaStreamSynchronize", at + 42, 29.1)
    data = json.dumps({"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
