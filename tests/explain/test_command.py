from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def test_explain_takes_codes_text_files_folders_and_pipes(npukit: Any, tmp_path: Path) -> None:
    codes = npukit("explain", "507015", "EI0002").stdout
    assert "a kernel stopped on the card" in codes and "a rank waited in a collective" in codes
    assert "no-cuda" in npukit("explain", "Torch", "not", "compiled", "with", "CUDA", "enabled").stdout
    (tmp_path / "rank0.log").write_text("2026-11-14 10:30:00,000 EI0002: timed out\n")
    (tmp_path / "rank1.log").write_text("2026-11-14 10:05:00,000 x\nRuntimeError: NPU out of memory. Tried 2 GiB\n")
    folder = npukit("explain", str(tmp_path)).stdout
    assert folder.index("rank1.log:2") < folder.index("rank0.log:1: EI0002")
    assert npukit("explain", str(tmp_path / "rank0.log"), str(tmp_path / "rank1.log")).stdout == folder
    assert "ERR01002" in npukit("explain", text="[ERROR] ERR01002 OPS invalid type\n").stdout
    explanations = json.loads(npukit("explain", "--json", "-", text="NPU out of memory").stdout)["result"][
        "explanations"
    ]
    assert explanations[0]["code"] == "out-of-memory"


def test_explain_says_when_it_knows_nothing(npukit: Any) -> None:
    unknown = npukit("explain", text="Traceback:\nZeroDivisionError: division by zero\n")
    assert unknown.returncode == 1 and "ZeroDivisionError: division by zero" in unknown.stdout
    missing = npukit("explain", "none.log")
    assert missing.returncode == 2 and "There is no file none.log" in missing.stderr
    pasted = npukit("explain", "RuntimeError: NPU out of memory." + 500 * " and more")  # no file's name is as long
    assert pasted.returncode == 0 and "out-of-memory" in pasted.stdout


def test_codes_of_findings_have_their_pages(npukit: Any) -> None:
    pages = json.loads(npukit("explain", "--json", "NPK110", "npk933").stdout)["result"]["pages"]
    assert pages.keys() == {"NPK110", "NPK933"} and all(pages.values())
    assert npukit("explain", "NPK110", "NPK999").returncode == 2


def test_an_unknown_error_is_shown_beside_a_warning_that_is_known(npukit: Any) -> None:
    log = "UserWarning: x is deprecated and will be removed\nTraceback:\nZeroDivisionError: division by zero\n"
    shown = npukit("explain", text=log).stdout
    assert "ZeroDivisionError: division by zero" in shown and "deprecation" in shown


def test_what_is_only_near_is_a_list_and_no_cause(npukit: Any) -> None:
    message = "ValueError: the bucket is incompatible\n"
    shown = npukit("explain", text=message)
    assert shown.returncode == 1 and "versions-apart" in shown.stdout and "because" not in shown.stdout
    result = json.loads(npukit("explain", "--json", "-", text=message).stdout)["result"]
    assert result["known"] is False and result["explanations"][0]["strength"] == "nearest"
