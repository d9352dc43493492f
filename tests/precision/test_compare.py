"""Two runs: the same is called the same, and what differs is named where it begins."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from npukit.errors import NpukitError
from npukit.precision import capture
from npukit.precision.comparing import compare
from npukit.precision.reading.find import find_dumps, read
from npukit.precision.result import Outcome

Run = Callable[..., Path]


def nan(x: Tensor) -> Tensor:
    return x.masked_fill(torch.arange(x.numel()).view_as(x) == 5, float("nan"))


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_equal_runs_are_the_same_and_all_of_them_is_compared(record: Run, level: str) -> None:
    comparison = compare(record("a", level=level), record("b", level=level))
    assert comparison.same and comparison.exit_code == 0
    assert comparison.coverage == 1.0 and comparison.compared > 30


@pytest.mark.parametrize(
    ("fault", "kind", "op"),
    [
        (lambda x: x * 1.01, "missing", "mul in 2"),
        (lambda x: x.bfloat16().float(), "missing", "_to_copy in 2"),
        (nan, "missing", "masked_fill in 2"),
    ],
)
def test_an_operator_that_only_one_run_has_is_named(
    record: Run, fault: Callable[[Tensor], Tensor], kind: str, op: str
) -> None:
    comparison = compare(record("plain"), record("faulty", fault))
    assert comparison.first is not None
    assert (comparison.first.kind, op in comparison.first.what) == (kind, True)
    assert "conftest.py:" in comparison.first.place
    # One call more shifts nothing: all others still find their partner.
    assert set(comparison.counts) <= {"same", "differs", "only right"}


def by_halves(left_behind: float) -> Callable[[Tensor], Tensor]:
    """Copies its input by two writes into memory in which something was left, as mixtures of experts do."""

    def fault(x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        buffer = torch.empty_like(rows)
        buffer.detach().numpy()[:] = left_behind  # unseen by torch, as another tensor's values would be
        for half in torch.arange(len(rows)).chunk(2):
            buffer[half] = rows[half]
        return buffer.view_as(x)

    return fault


def test_what_nobody_wrote_is_no_difference(record: Run) -> None:
    comparison = compare(record("a", by_halves(1.0)), record("b", by_halves(-7e5)))
    assert comparison.same, comparison.first
    assert not compare(record("c", by_halves(1.0)), record("d", lambda x: by_halves(1.0)(x) * 1.01)).same


def test_memory_that_an_operator_keeps_for_itself_is_no_difference(tmp_path: Path) -> None:
    def run(name: str) -> Path:
        torch.manual_seed(0)
        lstm = torch.nn.LSTM(8, 8, num_layers=2, batch_first=True)
        with capture(tmp_path / name, level="ops"):
            lstm(torch.randn(2, 5, 8))[0].sum().backward()
        return tmp_path / name

    assert compare(run("a"), run("b")).same


def test_the_first_module_is_named_at_level_modules(record: Run) -> None:
    comparison = compare(record("a", level="modules"), record("b", lambda x: x * 1.01, level="modules"))
    assert comparison.first is not None and comparison.first.kind == "outside"
    assert comparison.first.row.path == "2.down"


def test_another_epsilon_is_an_argument_with_both_values(record: Run) -> None:
    comparison = compare(record("a"), record("b", eps=1e-3))
    assert comparison.first is not None and comparison.first.kind == "argument"
    assert "1e-05" in comparison.first.what and "0.001" in comparison.first.what
    assert [cause.code for cause in comparison.first.causes] == ["other-settings"]


def test_another_learning_rate_is_found_in_the_optimizer(record: Run) -> None:
    comparison = compare(record("a"), record("b", lr=0.2))
    assert comparison.first is not None and comparison.first.row.phase == "optimizer"
    assert [cause.code for cause in comparison.first.causes] == ["other-settings"]


def test_rounding_alone_is_no_difference(record: Run) -> None:
    comparison = compare(record("a"), record("b", lambda x: x * (1 + 2**-23)))
    assert comparison.same and any("mul in 2" in note for note in comparison.notes)  # and yet it is not kept back
    assert [loss.left for loss in comparison.losses] == pytest.approx(
        [loss.right for loss in comparison.losses], rel=1e-5
    )


def test_an_operator_with_a_small_effect_that_only_one_run_has_is_named(record: Run) -> None:
    comparison = compare(record("a"), record("b", lambda x: x * (1 + 1e-5)))
    assert comparison.first is not None and comparison.first.kind == "missing" and "mul in 2" in comparison.first.what


def test_renamed_modules_are_guessed_and_shown(record: Run) -> None:
    left, right = record("a", level="modules"), record("b", level="modules")
    file = find_dumps(right)[0, 0]
    for name in ("dump.json", "stack.json", "construct.json"):
        path = file.with_name(name)
        path.write_text(path.read_text().replace("Module.2.", "Module.second."))
    comparison = compare(left, right)
    assert comparison.same and comparison.coverage == 1.0
    assert comparison.renames["2.norm"] == "second.norm"


def test_what_was_not_compared_does_not_count(record: Run) -> None:
    left, right = record("a"), record("b")
    file = find_dumps(right)[0, 0]
    content = json.loads(file.read_text())
    content["data"] = dict(list(content["data"].items())[:10])
    file.write_text(json.dumps(content))
    comparison = compare(left, right)
    assert comparison.coverage < 1 and comparison.counts[Outcome.only_left.value] > 0


def test_a_dump_that_was_cut_is_read_as_far_as_it_goes(record: Run) -> None:
    file = find_dumps(record("a"))[0, 0]
    whole = len(read(file).calls)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert 0 < len(read(file).calls) < whole


BROKEN = {
    "empty": b"",
    "list": b"[]",
    "number": b"7",
    "no data": b'{"task": "statistics"}',
    "data is a list": b'{"data": []}',
    "cut": b'{"task": "statistics", "data": {"Module.a.Linear.forward.0": {"input',
    "utf-16": '{"data": {}}'.encode("utf-16"),
    "binary": bytes(range(256)),
    "deep": b'{"data": ' + b"[" * 100_000,
    "pickle": b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
    "long number": b'{"data": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("name", ["dump.json", "dump.pkl"])
def test_a_broken_dump_is_one_sentence(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NpukitError) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value) and str(tmp_path / name) in str(error.value)


def test_odd_rows_are_left_out_and_paths_stay_inside(tmp_path: Path) -> None:
    tensor = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": float("nan"),
        "data_name": "../../x",
    }
    rows = {
        "Module.a.Linear.forward.0": {"input_args": [tensor], "output": [{"type": "torch.Tensor", "shape": "no"}]},
        "nonsense": {}, "Aten.add.0.forward": 3, "Aten.mul.0.forward": {"output": {"type": [], "dtype": {}}},
    }  # fmt: skip
    (tmp_path / "dump_tensor_data").mkdir()
    (tmp_path / "dump.json").write_text(json.dumps({"dump_data_dir": "/etc", "data": rows}))
    calls = read(tmp_path / "dump.json").calls
    assert [call.name for call in calls] == ["Module.a.Linear.forward.0", "Aten.mul.0.forward"]
    assert calls[0].inputs["0"].file == tmp_path / "dump_tensor_data" / "x"


def test_the_command_records_a_script_and_compares(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Linear(4, 4)\n"
        "y = model(torch.ones(2, 4)) * float(sys.argv[1])\n"
        "y.sum().backward()\n"
        "torch.optim.SGD(model.parameters()).step()\n"
        "print('half', flush=True)\n"
        "model(torch.ones(2, 4))\n"
        "os._exit(0)\n"  # what is lost is the step that had not ended
    )

    def npukit(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "npukit", "precision", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    output = npukit("capture", "--device", "cpu", "--level", "ops", "-o", "dump", "--", "python", "train.py", "1")
    assert output.returncode == 0, output.stderr
    call = next(call for call in read(find_dumps(tmp_path / "dump")[0, 0]).calls if call.op == "mul")
    assert call.stack[0].startswith(f"File {script}, line 6")
    shutil.copytree(tmp_path / "dump", tmp_path / "other")
    (tmp_path / "other" / "step0" / "rank0" / "construct.json").write_text("{")
    result = npukit("compare", "dump", "other", "--json")
    assert (result.returncode, json.loads(result.stdout)["error"]["code"]) == (2, "invalid_input")
    assert len(result.stderr.splitlines()) == 1


def step(folder: Path, forward: Callable[[Tensor], Tensor]) -> Path:
    """One step of a function of a convolution's input, recorded."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    with capture(folder, level="ops"):
        forward(x * 2).square().sum().backward()
    return folder


def test_another_k_is_an_argument_although_the_result_has_another_shape(tmp_path: Path) -> None:
    dumps = [step(tmp_path / str(k), lambda x, k=k: x.topk(k, -1).values.exp()) for k in (2, 1)]
    difference = compare(*dumps).first
    assert difference and difference.kind == "argument" and "topk" in difference.what


def test_another_part_of_a_result_is_called_what_it_is(tmp_path: Path) -> None:
    parts: list[Callable[[Tensor], Tensor]] = [lambda x: x.exp()[:, ::2].sin(), lambda x: x.exp()[:, :2].sin()]
    difference = compare(*(step(tmp_path / str(n), part) for n, part in enumerate(parts))).first
    assert difference and difference.kind == "layout" and "sin" in difference.what


def test_statistics_that_a_batch_norm_keeps_are_a_result(tmp_path: Path) -> None:
    norms = [torch.nn.BatchNorm2d(4, momentum=momentum) for momentum in (0.1, 0.2)]
    difference = compare(*(step(tmp_path / str(norm.momentum), norm) for norm in norms)).first
    assert difference and difference.kind == "argument" and "native_batch_norm" in difference.what


def test_a_module_that_reads_a_copy_gets_its_own_gradient_alone(tmp_path: Path) -> None:
    module = torch.nn.Conv2d(4, 4, 1)
    dumps = [step(tmp_path / str(n), lambda x, n=n: x + module(x.clone() if n else x)) for n in range(2)]
    assert compare(*dumps).same


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_a_batch_in_two_parts_is_compared_by_its_gradients(tmp_path: Path, scale: float) -> None:
    def run(name: str, parts: int, scale: float) -> Path:
        torch.manual_seed(0)
        model, batch = torch.nn.Linear(4, 3), torch.randn(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with capture(tmp_path / name, level="ops"):
            for part in batch.chunk(parts):
                (model(part).square().mean() * scale).backward()
            optimizer.step()
        return tmp_path / name

    comparison = compare(run("whole", 1, 1.0), run("parts", 2, scale))
    assert comparison.same == (scale == 0.5)
    assert (comparison.losses[0].left == pytest.approx(comparison.losses[0].right)) == comparison.same


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_the_modules_of_a_compiled_model_are_seen(tmp_path: Path) -> None:
    for name in ("plain", "compiled"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(6)))
        run = torch.compile(model, backend="eager") if name == "compiled" else model
        with capture(tmp_path / name, level="modules"):
            run(torch.ones(2, 4)).sum().backward()
    comparison = compare(tmp_path / "plain", tmp_path / "compiled")
    assert comparison.first is None
    assert comparison.coverage == 1
