"""Replaying a suspect, ranks, checkpoints, environments, the page, and running twice."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

from npukit.errors import NpukitError
from npukit.precision.comparing import compare
from npukit.precision.determinism import check
from npukit.precision.environments import compare_environments
from npukit.precision.page import render
from npukit.precision.ranks import compare_ranks
from npukit.precision.reading.find import find_call, find_dumps, read
from npukit.precision.recording.options import RecordOptions
from npukit.precision.replay import write_script
from npukit.precision.weights import compare_weights

Run = Callable[..., Path]


class Evil:
    """Would make a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def wrong_relu(dump: Path) -> None:
    """Change the saved result of the first ReLU, as a wrong kernel would."""
    file = find_dumps(dump)[0, 0]
    content = json.loads(file.read_text())
    output = content["data"]["Aten.relu.0.forward"]["output"][0]
    output |= {"Hash": "0", "Norm": output["Norm"] * 1.1, "Sketch": ""}
    tensor = file.parent / "dump_tensor_data" / output["data_name"]
    torch.save(torch.load(tensor, weights_only=True) * 1.1, tensor)
    file.write_text(json.dumps(content))


def test_the_suspect_is_computed_again_and_the_wrong_side_named(
    record: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = record("a", tensors=True, steps=[0]), record("b", tensors=True, steps=[0])
    wrong_relu(right)
    comparison = compare(left, right)
    assert comparison.first is not None and comparison.first.replay is not None
    assert (comparison.first.row.left, comparison.first.replay.wrong) == ("Aten.relu.0.forward", "right")
    write_script(find_call(left, comparison.first.row), tmp_path / "alone")
    sys.argv = ["reproduce.py"]
    runpy.run_path(str(tmp_path / "alone" / "reproduce.py"))
    assert capsys.readouterr().out.startswith("output 0 on cpu: relative error 0")


def test_neither_side_is_wrong_where_their_settings_differ(record: Run) -> None:
    left, right = record("a", tensors=True, steps=[0]), record("b", tensors=True, steps=[0], eps=1e-2)
    for comparison in (compare(left, right), compare(right, left)):
        assert comparison.first is not None and comparison.first.replay is not None
        assert (comparison.first.kind, comparison.first.replay.wrong) == ("argument", "neither")


def test_a_tensor_that_is_code_is_not_run(record: Run, tmp_path: Path) -> None:
    left, right = record("a", tensors=True, steps=[0]), record("b", tensors=True, steps=[0])
    wrong_relu(right)
    for file in (right / "step0" / "rank0" / "dump_tensor_data").glob("Aten.relu.0.forward.output*"):
        file.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "pwned").encode() + b"'\ntR.")
    with pytest.raises(NpukitError):
        compare(left, right)
    assert not (tmp_path / "pwned").exists()


def test_the_page_holds_every_row_and_no_markup_of_others(record: Run) -> None:
    left = record("a", level="modules", steps=[0])
    right = record("<script>alert(1)<", lambda x: x * 2, level="modules", steps=[0])
    page = render(compare(left, right))
    assert page.count("<script>") == 1 and "{{" not in page
    data = json.loads(re.search(r"const data = (.*);\n", page)[1])
    assert len(data["rows"]) == len(compare(left, right).rows)


def test_a_rank_that_drifts_is_named_with_its_step(record: Run, tmp_path: Path) -> None:
    dump = record("dump")
    for step in ("step0", "step1"):
        shutil.copytree(dump / step / "rank0", dump / step / "rank1")
    assert compare_ranks(dump).first is None
    file = dump / "step1" / "rank1" / "dump.json"
    content = json.loads(file.read_text())
    content["data"]["Module.2.up.Linear.parameters_grad.0"]["weight"][0]["Hash"] = "0"
    file.write_text(json.dumps(content))
    comparison = compare_ranks(dump)
    assert comparison.first is not None
    assert (comparison.first.row.step, comparison.first.row.rank, comparison.first.row.path) == (1, 1, "2.up")
    with pytest.raises(NpukitError):
        compare_ranks(record("single"))


def test_checkpoints_in_any_format(tmp_path: Path) -> None:
    weights = {f"layers.{n}.weight": torch.randn(4, 4) for n in range(3)}
    save_file(weights, tmp_path / "a.safetensors")
    torch.save({"model": {f"module.{name}": weight for name, weight in weights.items()}}, tmp_path / "b.pt")
    assert compare_weights(tmp_path / "a.safetensors", tmp_path / "b.pt").same
    folder = tmp_path / "sharded"
    folder.mkdir()
    save_file({"layers.0.weight": weights["layers.0.weight"]}, folder / "model-1.safetensors")
    save_file({"layers.1.weight": weights["layers.1.weight"] * 1.5}, folder / "model-2.safetensors")
    comparison = compare_weights(tmp_path / "a.safetensors", folder)
    assert comparison.exit_code == 1 and comparison.only_left == ("layers.2.weight",)
    assert comparison.layers["layers.0"] == 0 and comparison.layers["layers.1"] == pytest.approx(1 / 3, rel=1e-3)


def test_checkpoints_of_fsdp_and_deepspeed(tmp_path: Path) -> None:
    weights = {f"layers.{n}.weight": torch.randn(4, 4) for n in range(2)}
    save_file(weights, tmp_path / "a.safetensors")
    save(
        {"model": weights, "step": 5, "optimizer": {"x": torch.ones(2)}}, checkpoint_id=tmp_path / "fsdp", no_dist=True
    )
    assert compare_weights(tmp_path / "a.safetensors", tmp_path / "fsdp").same
    states = tmp_path / "deepspeed" / "global_step3" / "mp_rank_00_model_states.pt"
    states.parent.mkdir(parents=True)
    torch.save({"module": weights, "ds_version": "0.17"}, states)
    (tmp_path / "deepspeed" / "latest").write_text("global_step3")
    assert compare_weights(tmp_path / "a.safetensors", tmp_path / "deepspeed").same
    (tmp_path / "fsdp" / "__0_0.distcp").write_bytes(b"cut")
    with pytest.raises(NpukitError):
        compare_weights(tmp_path / "a.safetensors", tmp_path / "fsdp")
    (tmp_path / "fsdp" / ".metadata").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(NpukitError, match=r"os\.system"):
        compare_weights(tmp_path / "a.safetensors", tmp_path / "fsdp")


@pytest.mark.parametrize("content", [b"", b"no", b"cos\nsystem\n(S'false'\ntR."])
@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_a_broken_checkpoint_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NpukitError):
        compare_weights(tmp_path / name, tmp_path / name)


def test_what_changes_numbers_is_told_from_what_does_not(record: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    left = record("a", steps=[0])
    monkeypatch.setenv("HCCL_DETERMINISTIC", "true")
    monkeypatch.setenv("SHELL_OF_MINE", "x")
    monkeypatch.setenv("MY_TOKEN", "secret")
    right = record("b", steps=[0])
    comparison = compare_environments(left, right)
    assert [difference.name for difference in comparison.matter] == ["HCCL_DETERMINISTIC"]
    assert "SHELL_OF_MINE" in [difference.name for difference in comparison.differences]
    assert "secret" not in (right / "environment.json").read_text()


def test_running_twice_finds_the_operator_that_draws(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nx = torch.ones(3) + 1\ny = torch.rand(3) * x\n")
    checked = check([str(script)], {"PATH": "/usr/bin"}, RecordOptions("", "ops"), tmp_path)
    assert not checked.deterministic
    first = checked.comparison.first
    assert first is not None and first.kind == "random" and first.place == f"{script}:3"
    assert [cause.code for cause in first.causes] == ["random-numbers"]


def test_every_call_of_a_dump_has_a_title(record: Run) -> None:
    assert all(call.title for call in read(find_dumps(record("a", steps=[0]))[0, 0]).calls)


def test_a_checkpoint_of_zero_3_is_put_together_and_no_code_in_it_runs(tmp_path: Path) -> None:
    weights = {"a.weight": torch.randn(5, 3), "b.weight": torch.randn(4)}
    folder = tmp_path / "zero3" / "global_step2"
    folder.mkdir(parents=True)
    (tmp_path / "zero3" / "latest").write_text("global_step2")
    shapes = [{name: weight.shape for name, weight in weights.items()}]
    for rank in range(2):
        pieces = []
        for weight in weights.values():
            flat = nn.functional.pad(weight.flatten(), (0, weight.numel() % 2))
            pieces.append(flat.chunk(2)[rank])
        group = torch.cat(pieces)
        group.ds_id = 3  # type: ignore[attr-defined]  # DeepSpeed's flat groups have attributes of their own
        states = {"fp32_flat_groups": [group], "partition_count": 2, "loss_scaler": Evil(tmp_path / "ran")}
        begin = folder / f"zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"optimizer_state_dict": states}, f"{begin}_optim_states.pt")
        torch.save({"param_shapes": shapes, "module": {}}, f"{begin}_model_states.pt")
    torch.save(weights, tmp_path / "whole.pt")
    assert compare_weights(tmp_path / "zero3", tmp_path / "whole.pt").same
    last = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": Evil(tmp_path / "ran")}, last, _use_new_zipfile_serialization=False)
    with pytest.raises(NpukitError, match="damaged"):
        compare_weights(tmp_path / "zero3", tmp_path / "whole.pt")
    assert not (tmp_path / "ran").exists()
    last.unlink()
    with pytest.raises(NpukitError, match="by 2 ranks"):
        compare_weights(tmp_path / "zero3", tmp_path / "whole.pt")


def test_files_of_msprobes_monitor_are_compared_as_far_as_their_digits_go(tmp_path: Path) -> None:
    def write(name: str, norm: float, tiny: str = "0.000012") -> Path:
        folder = tmp_path / name / "Nov16_08-00-00-rank1-ab"
        folder.mkdir(parents=True)
        head, rows = "vpp_stage,name,step,norm,max\n", f"0,b.weight,1,{norm},0.5\n0,c.weight,1,{tiny},nan\n"
        (folder / "grad_reduced_0-1.csv").write_text(f"{head}0,b.weight,0,1.123456,0.5\n{rows}")
        micro = "vpp_stage,name,step,micro_step,norm\n0,a.input,1,0,2.5\n0,a.output,1,0,3.5\n"
        (folder / "actv_1-1.csv").write_text(micro)
        return tmp_path / name

    left = write("left", 2.0)
    assert compare(left, write("rounded", 2.0, tiny="0.000013")).counts == {"same": 3, "not compared": 1}
    first = compare(left, write("right", 2.2)).first
    assert first and (first.row.step, first.row.rank, first.row.path) == (1, 1, "b.weight")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "actv_1-1.csv").write_text("name\nx\n")
    with pytest.raises(NpukitError, match="monitor"):
        compare(left, tmp_path / "broken")
