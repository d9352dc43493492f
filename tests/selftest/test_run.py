"""The self-test goes on after a process that crashes or hangs, and always comes to an end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit import packages
from npukit.launch.devices import choose
from npukit.selftest import run
from npukit.selftest.check import DeviceCheck
from npukit.selftest.groups import checks_of
from npukit.selftest.reference import reference
from npukit.selftest.result import CheckResult, Selftest, verdict
from npukit.selftest.run import MAX_LOST, run_group
from npukit.selftest.worker import judged, outcome_of

FAKE = Path(__file__).with_name("fake_worker.py")
CPU = torch.device("cpu")


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(group: str, limit: float = 60) -> dict[str, str]:
        return {check.name: check.outcome for check in run_group(group, choose("cpu"), limit)}

    monkeypatch.setattr(run, "script_arguments", lambda command, auto: [str(FAKE), *command[2:]])
    return of


def test_a_crash_or_a_hang_is_one_failed_check(outcomes: Any) -> None:
    by_name = outcomes("pchfp", limit=4)
    assert by_name == {"0p": "passed", "1c": "crashed", "2h": "timed out", "3f": "failed", "4p": "passed"}


def test_a_device_that_does_not_answer_is_given_up(outcomes: Any) -> None:
    by_name = outcomes("c" * MAX_LOST + "pp")
    assert list(by_name.values()) == ["crashed"] * MAX_LOST + ["not run"] * 2


def test_crashes_between_checks_that_pass_do_not_end_the_group(outcomes: Any) -> None:
    assert list(outcomes("cpcpcpcp").values()) == ["crashed", "passed"] * 4


def test_a_process_that_cannot_start_is_told(outcomes: Any) -> None:
    assert outcomes("x") == {"start": "crashed"}
    check = next(run_group("x", choose("cpu"), limit=60))
    assert "exit code 1" in check.message and "no such card" in check.message


@pytest.mark.parametrize(("change", "outcome"), [(1e-6, "passed"), (1e-2, "failed"), (float("nan"), "failed")])
def test_results_are_held_against_those_that_ship(change: float, outcome: str) -> None:
    expected = reference()["losses"][0]
    assert expected is not None
    check = DeviceCheck("losses", lambda device: [expected * (1 + change)], "losses", torch.float32)
    assert outcome_of(check, CPU)["outcome"] == outcome
    wrong_shape = judged(check, [expected[:-1]])
    assert wrong_shape["outcome"] == "failed" and wrong_shape["error"] == "inf"


def test_one_other_token_is_a_failure() -> None:
    tokens = reference()["tokens"][0]
    assert tokens is not None
    check = DeviceCheck("tokens", lambda device: [], "tokens")
    assert judged(check, [tokens])["outcome"] == "passed"
    other = tokens.clone()
    other[0, 0] += 1
    assert judged(check, [other])["outcome"] == "failed"


def test_a_check_that_raises_or_lacks_a_package() -> None:
    def raises(error: Exception) -> Any:
        def run(device: torch.device) -> Any:
            raise error

        return run

    assert outcome_of(DeviceCheck("a", raises(RuntimeError("507018"))), CPU)["outcome"] == "failed"
    from npukit.packages import not_installed

    assert outcome_of(DeviceCheck("a", raises(not_installed(["peft"]))), CPU)["outcome"] == "skipped"


def test_every_check_has_a_shipped_result() -> None:
    keys = {check.key for group in ("formulas", "training", "serving", "precision") for check in checks_of(group, CPU)}
    assert keys - {""} == reference().keys()


def test_the_command_writes_a_file_to_send(npukit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-secret-that-nobody-sees")
    file = tmp_path / "result.json"
    result = npukit("selftest", "--device", "cpu", "--group", "formulas", "--output", str(file), "--json")
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)["result"]
    assert shown["good"] and shown["failed"] == [] and shown["groups"]["formulas"]["passed"] > 200
    written = json.loads(file.read_text())
    assert written["schema_version"] == 1 and written["result"]["doctor"]["checks"]
    assert written["result"]["versions"]["torch"] == torch.__version__
    assert len(written["result"]["checks"]) == shown["groups"]["formulas"]["passed"]
    assert str(tmp_path) not in file.read_text() and "a-secret" not in file.read_text()


def test_skipped_checks_alone_are_no_success() -> None:
    skipped = Selftest("cpu", (CheckResult("operators", "start", "skipped", 0.0),))
    assert not skipped.good and verdict(skipped) != verdict(Selftest("cpu", (CheckResult("a", "b", "passed", 0.0),)))


def test_an_unknown_group_is_refused(npukit: Any) -> None:
    assert npukit("selftest", "--device", "cpu", "--group", "speed").returncode == 2


def test_torch_without_numpy_is_refused_before_a_check_runs(npukit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which torch needs to send objects between ranks."""
    monkeypatch.setattr(packages, "is_installed", lambda package: package != "numpy")
    refused = npukit("selftest", "--device", "cpu", "--json")
    assert refused.returncode == 2
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "missing_package" and "numpy" in error["message"]
