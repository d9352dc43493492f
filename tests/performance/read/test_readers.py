"""The same run reads alike from torch_npu's text files, from its database and, packed or not, from Kineto."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.performance.profiles import database, kineto_trace, text_profile

from npukit.errors import NpukitError
from npukit.performance.read import read_profiles, stream
from npukit.performance.read.kineto import outermost
from npukit.performance.read.model import HostCall, Work
from npukit.performance.read.values import microseconds, number, shapes_of, users_line


def test_text_and_database_hold_the_same(tmp_path: Path) -> None:
    text_profile(tmp_path / "text")
    (text,) = read_profiles([tmp_path / "text"])
    (db,) = read_profiles([database(tmp_path / "db" / "ascend_pytorch_profiler_0.db")])
    for trace in (text, db):
        kernels = sorted(
            (kernel.type, kernel.start, kernel.end, kernel.shapes, kernel.launched) for kernel in trace.kernels
        )[:4]
        assert [kernel[0] for kernel in kernels] == ["Index", "MatMulV2", "MatMulV2", "TransData"]
        assert kernels[1][3] == ((1024, 1024), (1024, 1024))
        assert all(kernel[4] for kernel in kernels)
        assert [collective.duration // 10**6 for collective in trace.collectives] == [60, 2]
        assert trace.cores == 20
    assert [one.start for one in text.collectives] == [collective.start for collective in db.collectives]


def test_new_column_names_are_known(tmp_path: Path) -> None:
    text_profile(tmp_path, columns="Block Num")
    assert read_profiles([tmp_path])[0].cores == 20


@pytest.mark.parametrize("left", ["kernel_details.csv", "communication.json", "trace_view.json"])
def test_any_part_of_a_folder_is_enough(tmp_path: Path, left: str) -> None:
    output = text_profile(tmp_path)
    for file in output.iterdir():
        if file.name != left:
            file.unlink()
    if left == "trace_view.json":
        with pytest.raises(NpukitError):  # this one names neither kernels nor operators
            read_profiles([output / "kernel_details.csv"])
    assert read_profiles([tmp_path])[0].has


@pytest.mark.parametrize("name", ["rank3.pt.trace.json", "rank3.pt.trace.json.gz"])
def test_a_kineto_trace(tmp_path: Path, name: str) -> None:
    (trace,) = read_profiles([kineto_trace(tmp_path / name)])
    assert (trace.rank, trace.device, trace.device_name, len(trace.steps)) == (3, "cuda", "NVIDIA H200", 3)
    assert [kernel.op for kernel in trace.kernels] == ["aten::mm"] * 3
    assert trace.kernels[0].work is Work.compute
    assert trace.kernels[0].stack == "train.py:7"
    assert trace.kernels[0].dtypes == ("float32", "float32")


def test_a_damaged_file_among_others_is_noted(tmp_path: Path) -> None:
    output = text_profile(tmp_path)
    (output / "trace_view.json").write_text('[{"ph": "X", "na')
    (trace,) = read_profiles([tmp_path])
    assert len(trace.kernels) == 6
    assert "trace_view.json" in trace.notes[0]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'{"traceEvents": [{"ph": "X", "ts": 1'),
        ("a.json.gz", b"\x1f\x8bnot gzip"),
        ("a.db", b"SQLite format 3\0 and no more"),
        ("kernel_details.csv", b"Name,Type\n\xff\xfe,\0\n"),
        ("log.jsonl", b"{}\n[]\nnull"),
        ("a.json", b"[[[[" * 5000),
        ("a.json", json.dumps({"traceEvents": [{"ph": "X", "name": 3, "ts": {}, "dur": None, "args": []}]}).encode()),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(NpukitError, match=name):
        read_profiles([tmp_path / name])


def test_links_in_a_circle_and_pipes_are_passed_by(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.pt.trace.json")
    kineto_trace(tmp_path / "a.pt.trace.json")
    assert len(read_profiles([tmp_path])) == 1


def test_no_profile_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(NpukitError):
            read_profiles([path])


def test_values() -> None:
    assert microseconds("1736408883704643.212\t") == 1736408883704643212
    assert microseconds("N/A") is None
    assert number("nan") is None and number("1e999") is None
    assert shapes_of('"""32,3;64;"""') == ((32, 3), (64,), ())
    frames = ["/usr/lib/python3.9/x.py(1): f", "torch/nn/x.py(2): g", "a/train.py(12): main"]
    assert users_line(frames) == "a/train.py:12"


@pytest.mark.parametrize("window", [1, 2, 7, 64])
def test_events_are_read_whole_wherever_the_window_ends(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {"dims": [[1, 2], []], "x": None, "on": True}
    events = [{"ts": 12.5, "name": 'a "quoted" \\ é', "args": args}, 17, -3.5, {}]
    monkeypatch.setattr(stream._Scanner, "_WINDOW", window)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"head": [1, {"b": False}], "traceEvents": events, "name": "t"}, indent=3))
    assert list(stream.json_items(file, "traceEvents")) == events
    assert stream.json_head(file, ("head", "name")) == {"head": [1, {"b": False}]}
    file.write_text(json.dumps(events, ensure_ascii=False)[:-1])
    with pytest.raises(stream.UnreadableProfile, match="in the middle"):
        list(stream.json_items(file))
    file.write_text('[{"a": 1}, {"b" 2}, ' + " " * 100 + '{"c": 3}]')
    with pytest.raises(stream.UnreadableProfile):
        list(stream.json_items(file))


def msprof_output(folder: Path, cards: tuple[int, ...]) -> Path:
    """A folder as `msprof` exports it: names end in a time, and all cards share the files."""
    output = folder / "PROF_000001_20250109153443_ABC" / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    rows = [
        "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),"
        "Task Wait Time(us),Block Dim,Input Shapes,Input Data Types,Input Formats"
    ]
    for card in cards:
        for n in range(3):
            start = f"{1_736_408_883_000_000 + n * 1000}.125\t"
            rows.append(
                f'{card},1,{n},2,mm_{n},MatMulV2,dynamic,AI_CORE,{start},{500 + card},0,20,"""8,8;8,8""",FLOAT,ND'
            )
    (output / "op_summary_20250109153502.csv").write_text("\n".join(rows) + "\n")
    launch = {"ph": "X", "name": "AscendCL@aclrtSynchronizeStream", "pid": 2, "tid": 9, "dur": 10}
    events = [
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "CANN"}},
        {**launch, "ts": "1736408883000600.000"},
    ]
    (output / "msprof_20250109153502.json").write_text(json.dumps(events))
    return output


@pytest.mark.parametrize("named", ["..", ".", "op_summary_20250109153502.csv"])
def test_a_folder_of_msprof(tmp_path: Path, named: str) -> None:
    output = msprof_output(tmp_path, (0,))
    (trace,) = read_profiles([(output / named).resolve()])
    assert [(kernel.type, kernel.duration, kernel.shapes[0]) for kernel in trace.kernels] == [
        ("MatMulV2", 500_000, (8, 8))
    ] * 3
    assert (trace.rank, trace.cores) == (0, 20)
    assert [call.name for call in trace.runtime] == [] if named.endswith("csv") else ["aclrtSynchronizeStream"]


def test_several_cards_in_one_folder_are_ranks(tmp_path: Path) -> None:
    msprof_output(tmp_path / "msprof", (4, 5))
    traces = read_profiles([tmp_path / "msprof"])
    assert [(trace.rank, {kernel.duration for kernel in trace.kernels}) for trace in traces] == [
        (4, {504_000}),
        (5, {505_000}),
    ]
    for rank in (0, 1):
        database(tmp_path / "together" / f"ascend_pytorch_profiler_{rank}.db", rank)
    assert [trace.rank for trace in read_profiles([tmp_path / "together"])] == [0, 1]
    assert read_profiles([database(tmp_path / "alone" / "msprof_20250109153502.db")])[0].rank == 0


def test_raw_data_beside_what_torch_npu_made_of_it_is_left_alone(tmp_path: Path) -> None:
    output = text_profile(tmp_path)
    msprof_output(output.parent, (0, 1))
    assert len(read_profiles([tmp_path])) == 1


def test_on_a_cpu_a_function_of_the_users_is_not_an_operator() -> None:
    """Only what an autograd function calls is work; the Python between belongs to the host."""
    calls = [HostCall("SoftRankBackward", 0, 100), HostCall("aten::mul", 10, 20), HostCall("aten::sum", 70, 80)]
    assert [call.name for call in outermost(calls)] == ["aten::mul", "aten::sum"]
