"""ONNX against PyTorch, and the command that compiles it for a card."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.export.om import atc_command, make_om
from npukit.export.onnx import export_onnx
from npukit.llm.config.use import Use

# ATC's list of ONNX operators lacks these, which other ways of exporting bring along.
UNKNOWN_TO_ATC = {"IsNaN", "ScaledDotProductAttention", "Attention", "GatherND"}


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_onnx_computes_as_pytorch_does(family: str, make_model: Any, tmp_path: Path) -> None:
    import onnx

    done = export_onnx(Use(model={"path": str(make_model(family))}), tmp_path / "out")
    assert done.difference < 1e-4 and (tmp_path / "out/tokenizer.json").is_file()
    model = onnx.load(str(tmp_path / "out/model.onnx"))
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 13)]
    assert not UNKNOWN_TO_ATC & {node.op_type for node in model.graph.node}
    with pytest.raises(NpukitError, match="--force"):
        export_onnx(Use(model={"path": "anything"}), tmp_path / "out")


def test_the_command_for_one_length_and_for_gears() -> None:
    one = atc_command(Path("m.onnx"), Path("m.om"), "910B3", 4, (128,))
    assert "--soc_version=Ascend910B3" in one and "--input_shape=input_ids:4,128;attention_mask:4,128" in one
    several = atc_command(Path("m.onnx"), Path("m.om"), "310P3", 1, (512, 128))
    assert "--input_shape=input_ids:1,-1;attention_mask:1,-1" in several
    assert "--dynamic_dims=128,128;512,512" in several, "as many numbers in a gear as there are -1"
    for wrong in ((), (0,), (5, 5)):
        with pytest.raises(NpukitError):
            atc_command(Path("m.onnx"), Path("m.om"), "910B3", 1, wrong)


def make_atc(folder: Path, script: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "atc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "atc").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_without_atc_a_script_is_written(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    made = make_om(tmp_path / "m.onnx", tmp_path / "m.om", "910B3", environ={"PATH": "/nowhere"})
    assert not made.compiled and made.output == tmp_path / "m.sh"
    environ = make_atc(tmp_path / "bin", 'printf "%s\\n" "$@" > arguments')
    subprocess.run([made.output], env=environ, cwd=tmp_path, check=True)
    assert (tmp_path / "arguments").read_text().splitlines() == list(made.command[1:])


def test_atc_makes_the_model_or_its_failure_is_explained(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    works = make_atc(
        tmp_path / "works", 'for a in "$@"; do case $a in --output=*) echo om > "${a#--output=}.om";; esac; done'
    )
    made = make_om(tmp_path / "m.onnx", tmp_path / "m.om", "910B3", environ=works)
    assert made.compiled and (tmp_path / "m.om").read_text() == "om\n"
    fails = make_atc(tmp_path / "fails", "echo 'ATC run failed'; echo 'E10001: Value [x] is invalid' >&2; exit 1")
    with pytest.raises(NpukitError) as error:
        make_om(
            tmp_path / "m.onnx",
            tmp_path / "n.om",
            "910B3",
            environ=fails,
            explained=lambda log: f"known: {'E10001' in log}",
        )
    assert "E10001" in str(error.value) and "known: True" in str(error.value)
    assert not (tmp_path / "n.om").exists() and not list(tmp_path.glob(".unfinished*"))
