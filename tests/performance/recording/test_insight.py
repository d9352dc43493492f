"""What is noted about a script while it is profiled: lines over time, one step in detail, graphs that are kept."""

from __future__ import annotations

import ast
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import npukit
from npukit.performance.read.lines import read_script
from npukit.performance.recording.examine import StepExaminer
from npukit.performance.recording.graph import holder, live_nodes
from npukit.performance.recording.insight import Insight
from npukit.performance.recording.threads import ThreadWatcher
from npukit.performance.recording.users_code import ScriptSource, is_users

LOOP = """
import torch

def rows(x):
    total = torch.zeros(())
    for i in range(len(x)):
        y = x[i] * 2
        total = total + y.sum()
    return total

def layers(x):
    for _ in range(12):
        x = x * 2
    return x

def mask(n):
    m = torch.full((n, n), -1.0)
    return torch.triu(m, 1)

def copies(x):
    return x.t().contiguous()

def wide(x):
    y = x.double()
    return y * y

def filled(x):
    y = torch.zeros(4)
    return y.index_add_(0, torch.arange(4), x)

def epochs(loader):
    return [x for _ in range(2) for x in loader]

def counts(over):
    while not over.is_set():
        sum(n for n in range(10000))
"""


def functions(tmp_path: Path) -> dict[str, Callable[..., Any]]:
    """The functions of a file that is the user's."""
    file = tmp_path / "script.py"
    file.write_text(LOOP)
    names: dict[str, Any] = {}
    exec(compile(LOOP, str(file), "exec"), names)
    return names


def examined(tmp_path: Path, name: str, *arguments: Any) -> dict[tuple[int, str], dict[str, Any]]:
    function = functions(tmp_path)[name]
    with StepExaminer() as examiner:
        function(*arguments)
    data = examiner.as_data()
    rows = {(int(row["line"].rpartition(":")[2]), row["op"]): row for row in data["operators"]}
    return {key: row | {"float64": data["float64"]} for key, row in rows.items() if "script.py" in row["line"]}


def test_rounds_of_a_loop_that_need_one_another_are_told_from_others(tmp_path: Path) -> None:
    rows = examined(tmp_path, "rows", torch.randn(16, 4))
    assert (rows[7, "aten::mul"]["calls"], rows[7, "aten::mul"]["depth"]) == (16, 1)
    assert rows[8, "aten::add"]["depth"] == 16
    assert rows[7, "aten::mul"]["loops"][0].endswith("script.py:6")
    assert examined(tmp_path, "layers", torch.randn(4))[13, "aten::mul"]["depth"] == 12


def test_what_depends_on_no_batch_is_constant(tmp_path: Path) -> None:
    rows = examined(tmp_path, "mask", 4)
    assert rows[18, "aten::triu"]["constant"] == rows[18, "aten::triu"]["calls"] == 1
    with torch.device("cpu"):  # as torch.set_default_device
        assert examined(tmp_path, "mask", 4)[18, "aten::triu"]["direct"]
    assert examined(tmp_path, "copies", torch.randn(3, 4))[21, "aten::clone"]["constant"] == 0
    assert examined(tmp_path, "filled", torch.randn(4))[28, "aten::zeros"]["constant"] == 0


def test_copies_are_told_from_views_and_float64_from_where_it_comes(tmp_path: Path) -> None:
    rows = examined(tmp_path, "copies", torch.randn(3, 4))
    assert list(rows) == [(21, "aten::clone")] and rows[21, "aten::clone"]["direct"]
    rows = examined(tmp_path, "wide", torch.randn(100))
    assert [line.rpartition(":")[2] for line in rows[25, "aten::mul"]["float64"]] == ["24"]


def test_graphs_that_are_kept_are_counted_and_named() -> None:
    weight = torch.ones(3, requires_grad=True)
    before = live_nodes()
    losses = []
    for _ in range(3):
        losses.append((weight * 2).sum())
    assert live_nodes() - before == 7  # three times two, and the weight's own
    name, line = holder()
    assert name == "losses"
    assert "losses.append" in Path(__file__).read_text().splitlines()[int(line.rpartition(":")[2]) - 1]


def test_a_state_that_is_handed_on_with_its_history_is_named() -> None:
    weight, state = torch.ones(3, requires_grad=True), torch.zeros(3)
    for _ in range(30):
        output = torch.tanh(weight * state)
        loss, state = output.sum(), output
        del output
    assert loss.requires_grad
    name, line = holder()
    assert name == "state"
    assert "loss, state =" in Path(__file__).read_text().splitlines()[int(line.rpartition(":")[2]) - 1]


def test_what_torch_compile_takes_is_noted(tmp_path: Path) -> None:
    """As often as it compiles; the second call of a compiled function costs nothing."""
    scaled = functions(tmp_path)["layers"]
    insight = Insight()
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(scaled, backend="eager")
        compiled(torch.ones(4))
        compiled(torch.ones(4))
    insight.write(tmp_path / "lines.rank0.json.gz")
    read = read_script(tmp_path, 0, base=0)
    assert read and len(read.compiled) == 2 and all(start < end for start, end in read.compiled)
    assert not read.written


def test_the_start_of_a_loader_is_noted(tmp_path: Path) -> None:
    insight = Insight()
    functions(tmp_path)["epochs"](torch.utils.data.DataLoader([1, 2, 3]))
    insight.write(tmp_path / "lines.rank0.json.gz")
    read = read_script(tmp_path, 0, base=0)
    assert read and len(read.loading) == 2 and not read.written


def test_lines_are_noted_with_their_times_and_read_again(tmp_path: Path) -> None:
    names = functions(tmp_path)
    trace = sys.gettrace()
    sys.settrace(None)  # of a coverage tool
    try:
        insight = Insight()
        names["mask"](4)
        insight.next_step(recorded=False)
        insight.write(tmp_path / "lines.rank0.json.gz")
    finally:
        sys.settrace(trace)
    script = read_script(tmp_path, 0, base=0)
    assert script is not None
    ran = [script.lines[number] for _, number in script.changes]
    assert [line.rpartition(":")[2] for line in ran if "script.py" in line] == ["16", "17", "18"]
    time = script.changes[next(n for n, line in enumerate(ran) if line.endswith("script.py:17"))][0]
    assert script.at(time).endswith("script.py:17") and script.text_of(script.at(time)).startswith("m = torch")


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nlosses.append(x)", 2), ("self.losses += [x]", 1), ("losses = losses + x", 1), ("losses = []", None)],
)
def test_the_line_that_adds_to_a_name_is_found(tmp_path: Path, text: str, line: int | None) -> None:
    (tmp_path / "a.py").write_text(text)
    assert ScriptSource(str(tmp_path / "a.py")).grows("losses") == line


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("y, h = model(x, h)", 2),
        ("y, new = model(x, h)\n    h = new.tanh()", 3),
        ("self.h = cell(x, self.h)", 2),
        ("h = model(x)\n    h = h.tanh()", None),
    ],
)
def test_the_line_that_hands_a_state_on_is_found(tmp_path: Path, body: str, line: int | None) -> None:
    (tmp_path / "a.py").write_text(f"for x in data:\n    {body}\n")
    assert ScriptSource(str(tmp_path / "a.py")).hands_on("h") == line


def test_whose_code_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ModuleType("megatron")
    elsewhere.__file__ = "/opt/Megatron-LM/megatron/__init__.py"
    monkeypatch.setitem(sys.modules, "megatron", elsewhere)
    assert is_users("/home/me/train.py") and is_users("/opt/Megatron-LM/pretrain_gpt.py")
    assert not is_users("/opt/Megatron-LM/megatron/core/optimizer.py")
    assert not any(map(is_users, (torch.__file__, "<string>", ast.__file__, npukit.__file__)))


def test_a_thread_that_takes_turns_with_the_loop_is_noted(tmp_path: Path) -> None:
    """As one that parses batches in advance; one that only waits is not."""
    names, over = functions(tmp_path), threading.Event()
    busy = threading.Thread(target=names["counts"], args=(over,), daemon=True)
    waiting = threading.Thread(target=over.wait, daemon=True)
    watcher = ThreadWatcher()
    for thread in (busy, waiting, watcher):
        thread.start()
    time.sleep(0.2)
    over.set()
    busy.join()
    watcher.stop()
    lines = {line.rpartition(":")[2] for _, _, line, _ in watcher.as_data()["elsewhere"] if "script.py" in line}
    assert lines and lines <= {"35", "36"}
