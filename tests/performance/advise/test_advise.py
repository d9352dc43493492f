"""Findings by code, with the milliseconds that could be won, from every form of a profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.performance.profiles import database, kineto_trace, text_profile
from typer.testing import CliRunner

from npukit.cli import app
from npukit.errors import NpukitError
from npukit.performance.advise.advise import Advised, advise, judge
from npukit.performance.advise.compare import ProfileComparison
from npukit.performance.advise.page import write_report
from npukit.performance.advise.pages import page
from npukit.performance.advise.rules import all_rules
from npukit.performance.advise.text import as_text
from npukit.performance.read import read_profiles


def codes(advised: Advised | ProfileComparison) -> dict[str, float]:
    assert isinstance(advised, Advised)
    return {advice.finding.code: advice.ms for advice in advised.advice}


def two_ranks_as_text(folder: Path) -> Path:
    for rank in (0, 1):
        text_profile(folder, rank)
    return folder


def two_ranks_as_database(folder: Path) -> Path:
    for rank in (0, 1):
        database(folder / f"rank{rank}" / f"ascend_pytorch_profiler_{rank}.db", rank)
    return folder


@pytest.mark.parametrize("write", [two_ranks_as_text, two_ranks_as_database])
def test_two_ranks_of_an_npu(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    advised = advise([write(tmp_path)])
    assert isinstance(advised, Advised)
    split = advised.ranks[0].split
    assert [round(part) for part in (split.compute, split.communication, split.host)] == [30, 62, 5]
    assert advised.ranks[0].step_ms == pytest.approx(98)
    result = codes(advised)
    assert next(iter(result)) == "NPK831"  # 60 ms for 16 MB, where 160 MB take 2
    assert result["NPK831"] == pytest.approx(59.8, abs=1)
    assert "rank 1" in advised.advice[0].finding.what
    assert result["NPK813"] == pytest.approx(5)
    assert result["NPK810"] == pytest.approx(5)
    assert result["NPK802"] == pytest.approx(2.9, abs=0.2)  # the gap that the wait left, not the 4 ms of waiting
    assert result["NPK822"] == pytest.approx(14)
    assert ("NPK850" in result) == (write is two_ranks_as_text)


def test_a_gpu_that_waits_for_its_batches(tmp_path: Path) -> None:
    advised = advise([kineto_trace(tmp_path / "a.pt.trace.json")])
    assert isinstance(advised, Advised)
    result = codes(advised)
    assert result["NPK803"] == pytest.approx(30, rel=0.1)
    assert result["NPK802"] > 10
    assert "NPK815" not in result
    place = next(advice.finding.place for advice in advised.advice if advice.finding.code == "NPK822")
    assert place and (str(place.file), place.line) == ("train.py", 7)


def test_varying_shapes_are_counted(tmp_path: Path) -> None:
    assert "NPK815" in codes(advise([kineto_trace(tmp_path / "a.pt.trace.json", varying=True)]))


def events_file(file: Path, *events: tuple[str, str, int, int]) -> Path:
    """A trace of torch's profiler with events of a category, a name, a start and a length in microseconds."""
    rows = [{"ph": "X", "pid": 1, "tid": 1, "cat": c, "name": n, "ts": at, "dur": long} for c, n, at, long in events]
    file.write_text(json.dumps({"traceEvents": rows}))
    return file


def test_a_step_in_which_nothing_was_launched_is_none(tmp_path: Path) -> None:
    steps = [("user_annotation", "ProfilerStep#1", 0, 900), ("user_annotation", "ProfilerStep#2", 950, 5)]
    kernels = [("kernel", "gemm", 100, 200), ("kernel", "gemm", 500, 200)]
    advised = advise([events_file(tmp_path / "rank0.pt.trace.json", *steps, *kernels)])
    assert isinstance(advised, Advised)
    assert advised.ranks[0].steps == 1 and advised.ranks[0].split.compute == pytest.approx(0.4)


def test_other_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NpukitError):
        advise([events_file(tmp_path / "rank0.pt.trace.json", ("cpu_op", "aten::mm", 0, 9), ("hpu_op", "gemm", 2, 5))])


def test_kernels_are_compared_with_themselves_beside_collectives(tmp_path: Path) -> None:
    events = []
    for number in range(8):
        start, slow = number * 1000, 1.5 if number % 2 else 1.0  # every second one beside an all-reduce of 300 us
        call = {"External id": number, "Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
        events.append({"cat": "cpu_op", "name": "aten::mm", "ts": start, "dur": 5, "tid": 1, "args": call})
        args = {"External id": number, "stream": 7}
        events.append({"cat": "kernel", "name": "gemm", "ts": start + 10, "dur": 200 * slow, "tid": 7, "args": args})
        if number % 2:
            beside = {"cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": start + 10, "dur": 300}
            events.append({**beside, "tid": 9, "args": {"stream": 9}})
    file = tmp_path / "rank0.pt.trace.json"
    file.write_text(json.dumps({"traceEvents": [{"ph": "X", "pid": 1, **event} for event in events]}))
    assert codes(advise([file]))["NPK836"] == pytest.approx(0.4)


def test_findings_with_a_line_as_sarif(tmp_path: Path) -> None:
    profile, report = kineto_trace(tmp_path / "a.pt.trace.json"), tmp_path / "advice.sarif"
    assert CliRunner().invoke(app, ["advise", str(profile), "--report", str(report)]).exit_code == 0
    results = json.loads(report.read_text())["runs"][0]["results"]
    places = {result["ruleId"]: result["locations"][0]["physicalLocation"] for result in results}
    assert places["NPK822"]["region"]["startLine"] == 7 and "NPK803" not in places
    with pytest.raises(NpukitError):
        write_report([profile], tmp_path / "advice.pdf")


def test_two_profiles_of_the_same_rank_are_compared(tmp_path: Path) -> None:
    before, after = kineto_trace(tmp_path / "a.json", loader_ms=0), kineto_trace(tmp_path / "b.json", slower=2)
    result = advise([before, after])
    assert isinstance(result, ProfileComparison)
    assert (result.before.step_ms, result.after.step_ms) == pytest.approx((90.3, 100.3), abs=1)
    assert (result.kinds[0].name, round(result.kinds[0].ms)) == ("matmul", 30)
    output = CliRunner().invoke(app, ["advise", str(before), str(after)])
    assert output.exit_code == 0 and "matmul" in output.stdout


def test_what_could_not_be_judged_names_the_setting(tmp_path: Path) -> None:
    output = text_profile(tmp_path)
    (output / "trace_view.json").unlink()
    unjudged = {rule.code: rule.needs for rule in judge(read_profiles([tmp_path])).unjudged}
    assert "trace_view.json" in unjudged["NPK801"]
    assert "gc_detect_threshold" in unjudged["NPK804"]


def test_a_log_of_train(tmp_path: Path) -> None:
    records = [{"step": step, "seconds": step * 0.5, "data_wait": 0.4, "loss": 1.0} for step in range(1, 5)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 5, "se')
    assert codes(advise([tmp_path]))["NPK860"] == pytest.approx(200)


def test_the_command_prints_text_and_json(tmp_path: Path) -> None:
    two_ranks_as_text(tmp_path)
    runner = CliRunner(env={"COLUMNS": "100"})
    text = runner.invoke(app, ["advise", str(tmp_path)])
    assert text.exit_code == 0 and text.stdout == as_text(judge(read_profiles([tmp_path])))
    data = json.loads(runner.invoke(app, ["advise", "--json", str(tmp_path)]).stdout)["result"]
    assert data["advice"][0]["finding"]["code"] == "NPK831"
    assert data["ranks"][0]["split"]["communication"] == pytest.approx(62)


def test_the_page_needs_no_network_and_shows_no_markup_of_others(tmp_path: Path) -> None:
    two_ranks_as_text(tmp_path / "two")
    (tmp_path / "two" / "<script>alert(1)").mkdir()
    kineto_trace(tmp_path / "two" / "<script>alert(1)" / "rank2.pt.trace.json")
    result = CliRunner().invoke(app, ["advise", str(tmp_path / "two"), "--report", str(tmp_path / "a.html")])
    assert result.exit_code == 0
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "NPK831" in html and "<rect" in html and "{{" not in html
    assert "<script" not in html and "http" not in html
    assert CliRunner().invoke(app, ["advise", str(tmp_path / "two"), "--report", "a.txt"]).exit_code != 0


def test_explain_knows_every_rule() -> None:
    codes_ = [rule.code for rule in all_rules()]
    assert len(set(codes_)) == len(codes_)
    result = CliRunner().invoke(app, ["explain", *codes_])
    assert result.exit_code == 0
    for rule in all_rules():
        assert page(rule) in result.stdout
