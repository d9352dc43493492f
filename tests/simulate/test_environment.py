from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.facts.cards import card, cards
from npukit.simulate import activate, environment


def test_it_is_complete_and_keeps_what_was_there() -> None:
    base = {"PATH": "/usr/bin", "PYTHONPATH": "/mine", "HOME": "/home/me"}
    made = environment(devices=4, card="910B4", base=base)
    assert made["HOME"] == "/home/me"
    assert made["PYTHONPATH"].endswith(":/mine")
    assert made["NPUKIT_SIM_DEVICES"] == "4"
    assert made["NPUKIT_SIM_SOC"] == "Ascend910B4"
    assert made["NPUKIT_SIM_MEMORY_MIB"] == "32768"
    assert made["NPUKIT_SIM_CORES"] == "20,40"
    assert (Path(made["LD_LIBRARY_PATH"]) / "libascendcl.so").exists()
    assert (Path(made["PYTHONPATH"].split(":")[0]) / "torch_npu" / "__init__.py").exists()
    assert (Path(made["PATH"].split(":")[0]) / "npu-smi").exists()
    assert Path(made["ASCEND_HOME_PATH"]).is_dir() and Path(made["ASCEND_OPP_PATH"]).is_dir()
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in made


def test_made_from_a_simulated_environment_it_repeats_nothing() -> None:
    once = environment(base={"PATH": "/usr/bin"})
    assert environment(base=once) == once


def test_faults_and_trace_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = environment(faults=["oom@3", "kill@9,rank=1"], trace="ops.json", compute="shapes")
    assert made["NPUKIT_SIM_FAULTS"] == "oom@3;kill@9,rank=1"
    assert made["NPUKIT_SIM_TRACE"] == str(tmp_path / "ops.json")
    assert made["NPUKIT_SIM_COMPUTE"] == "shapes"


def test_this_process_is_left_alone() -> None:
    before = dict(os.environ)
    environment(devices=2)
    assert dict(os.environ) == before


def test_no_devices_is_refused() -> None:
    with pytest.raises(NpukitError, match="at least one"):
        environment(devices=0)


def test_activate_after_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    with pytest.raises(NpukitError, match="before anything imports torch"):
        activate()


@pytest.mark.parametrize("name", ["910B3", "910b3", "Ascend910B3"])
def test_a_card_is_found_by_any_spelling(name: str) -> None:
    assert card(name).soc == "Ascend910B3"


def test_cards_are_what_torch_npu_knows_them_as() -> None:
    assert not card("910A").bf16 and not card("310P3").bf16 and card("910B1").bf16
    assert card("910B4").memory_mib == 32 * 1024
    for known in cards().values():
        assert known.soc == f"Ascend{known.name}"
        assert known.memory_mib > 0 and known.cube_cores > 0 and known.vector_cores > 0


def test_an_unknown_card_is_refused_with_a_hint() -> None:
    with pytest.raises(NpukitError, match="did you mean 910B3"):
        card("910B33")
    with pytest.raises(NpukitError, match="known are 910A"):
        card("H100")
