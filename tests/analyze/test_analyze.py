"""analyze as users call it: verdicts, options, baselines, traces, packages, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npukit.cli import app
from npukit.errors import NpukitError
from npukit.facts.libraries import Library
from npukit.facts.target import Target
from npukit.facts.torch_npu import APIS
from npukit.migrate.analysis import Verdict, analyze
from npukit.migrate.goal import Goal
from npukit.migrate.migration import migrate
from npukit.migrate.rules.libraries import installed_version
from npukit.report import Finding


def codes(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_toml", ".toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("print('hello')\n", Verdict.ready),
        ("import torch\nx = torch.zeros(3).cuda()\n", Verdict.after_migrate),
        ("import torch\nimport flash_attn\nx = torch.zeros(3).cuda()\n", Verdict.needs_work),
        ("import MinkowskiEngine\n", Verdict.blocked),
    ],
)
def test_verdict(tmp_path: Path, text: str, verdict: Verdict) -> None:
    result = analyze([project(tmp_path, train_py=text)])
    assert result.verdict is verdict
    assert verdict.value in result.summary


def test_the_verdict_says_what_blocks(tmp_path: Path) -> None:
    assert "blocked by MinkowskiEngine" in analyze([project(tmp_path, a_py="import MinkowskiEngine\n")]).summary


def test_what_is_optional_blocks_nothing(tmp_path: Path) -> None:
    text = "try:\n    import MinkowskiEngine\nexcept ImportError:\n    pass\n"
    assert analyze([project(tmp_path, a_py=text)]).verdict is Verdict.ready


def test_more_places_are_more_work(tmp_path: Path) -> None:
    one = analyze([project(tmp_path / "one", a_py="import flash_attn\n")]).hours
    two = analyze([project(tmp_path / "two", a_py="import flash_attn\nimport apex\n")]).hours
    assert 0 < one < two


def test_a_name_without_counterpart_is_told_once(tmp_path: Path) -> None:
    result = analyze([project(tmp_path, a_py="import torch\ntorch.cuda.nvtx.range_push('x')\n")])
    assert [finding.code for finding in result.findings] == ["NPK201"]


def test_the_card_decides_about_bf16(tmp_path: Path) -> None:
    folder = project(tmp_path, a_py="import torch\nx = y.to(torch.bfloat16)\n")
    assert "NPK304" in codes(analyze([folder], Target.of(card="910A")).findings)
    assert "NPK304" not in codes(analyze([folder]).findings)


def test_options_of_the_project(tmp_path: Path) -> None:
    text = "import torch\nx = torch.linalg.det(y)\nz = torch.load('f')\n"
    options = '[tool.npukit]\nignore = ["NPK713"]\nexclude = ["old"]\n'
    project(tmp_path, a_py=text, old__b_py=text, pyproject_toml=options)
    findings = analyze([tmp_path]).findings
    assert codes(findings) == {"NPK302"}
    assert len(findings) == 1


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    project(tmp_path, a_py="x = 1\n", pyproject_toml='[tool.npukit]\nignored = ["NPK7"]\n')
    with pytest.raises(NpukitError, match="no option 'ignored'"):
        analyze([tmp_path])


def test_a_trace_shows_fallbacks_and_changing_shapes(tmp_path: Path) -> None:
    def op(name: str, support: str, size: int, line: int = 7, count: int = 1) -> dict[str, object]:
        inputs = [{"shape": [size, 8], "dtype": "Float"}]
        where = {"line": f"/p/a.py:{line}", "backward": False, "inputs": inputs, "count": count}
        return {"op": name, "support": support, **where}

    ops = [op("aten::mm", "npu", size) for size in range(5)]
    ops += [op("aten::mm", "npu", size, line=9, count=5) for size in range(5)]  # five layers on one line
    ops += [op("aten::_linalg_det.result", "cpu_fallback", 3), op("aten::ones_like", "npu", 1, line=8, count=5)]
    trace = tmp_path / "ops.json"
    trace.write_text(json.dumps({"version": 1, "ops": ops}))
    project(tmp_path, a_py="x = 1\n")
    by_code = {finding.code: finding for finding in analyze([tmp_path / "a.py"], trace=trace).findings}
    assert set(by_code) == {"NPK510", "NPK511"}
    assert "mm: 5 " in by_code["NPK510"].evidence
    assert str(by_code["NPK510"].place) == "/p/a.py:7:1"
    assert str(by_code["NPK511"].place) == "/p/a.py:7:1"


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["analyze", *map(str, arguments)])
    if isinstance(result.exception, NpukitError):
        return 2, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_check_fails_on_new_findings_only(tmp_path: Path) -> None:
    file = project(tmp_path, a_py="import torch\nx = torch.load('f')\n") / "a.py"
    baseline = tmp_path / "known.json"
    assert run(file)[0] == 0
    assert run(file, "--check")[0] == 1
    assert run(file, "--baseline", baseline, "--update-baseline")[0] == 0
    code, output = run(file, "--baseline", baseline, "--check")
    assert code == 0 and "torch.load" not in output
    file.write_text("import torch\n\n\nx = torch.load('f')\ny = torch.load('g')\n")
    code, output = run(file, "--baseline", baseline, "--check")
    assert code == 1
    assert "torch.load('g')" in output and "torch.load('f')" not in output


def test_a_report_is_written_to_a_file(tmp_path: Path) -> None:
    file = project(tmp_path, a_py="import flash_attn\n") / "a.py"
    code, output = run(file, "--report", tmp_path / "report.html")
    assert code == 0 and "needs work" in output
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere"),
        ([".", "--target", "torch_npu=1.0"], "1.0"),
        ([".", "--target", "cuda=12"], "cuda=12"),
        ([".", "--target", "card=910Z"], "910Z"),
        ([".", "--select", "XYZ"], "XYZ"),
        ([".", "--update-baseline"], "--baseline"),
        ([".", "--baseline", "missing.json"], "missing.json"),
        ([".", "--trace-ops", "missing.json"], "missing.json"),
        ([".", "--trace-ops", "a.py"], "a.py"),
    ],
)
def test_what_is_refused_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    project(tmp_path, a_py="x = 1\n")
    monkeypatch.chdir(tmp_path)
    code, output = run(*arguments)
    assert code == 2
    assert named in output and "\n" not in output


def test_the_target_decides_what_is_advised(tmp_path: Path) -> None:
    """torch.accelerator works with torch_npu since torch 2.7."""
    folder = project(tmp_path, a_py="import torch\ntorch.cuda.synchronize()\n")
    for torch_npu, advised in (("2.6", False), ("2.7", True), (APIS.versions[-1], True)):
        target = Target.of(torch_npu)
        remedy = analyze([folder], target).findings[0].remedy
        after = migrate(folder, Goal(target=target)).changes[0].after
        assert ("torch.accelerator" in remedy, "torch.accelerator" in after) == (advised, advised)
    (folder / "requirements.txt").write_text("torch==2.6.0\n")
    assert "torch.accelerator" not in migrate(folder).changes[0].after


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("NPK303", "x = torch.zeros(2, dtype=torch.complex128)\n"),  # on the CPU
        ("NPK302", "x = torch.linalg.eigh(y.cpu())\n"),
        ("NPK504", "for x in xs:\n    x = torch.cat([x, y])\n"),
        ("NPK713", "data = torch.load(cache_file)\n"),
        ("NPK101", "torch.cuda._lazy_init()\n"),
        ("NPK002", "softmax = torch.softmax(q @ k.T, -1) @ v\n"),
    ],
)
def test_what_is_right_is_not_reported(tmp_path: Path, code: str, text: str) -> None:
    folder = project(tmp_path, a_py=f"import torch\nfrom torch import nn\n{text}")
    assert not [finding for finding in analyze([folder]).by_hand if finding.code == code]


def test_what_runs_on_cuda_only_is_a_note_and_no_work(tmp_path: Path) -> None:
    guarded = "if torch.cuda.is_available():\n    c = torch.cuda.get_device_capability()\n    import triton\n"
    assert analyze([project(tmp_path, a_py=f"import torch\n{guarded}")]).hours == 0
    (tmp_path / "requirements.txt").write_text("".join(f"nvidia-lib{i}-cu12==1.0\n" for i in range(150)))
    assert analyze([tmp_path]).hours < 1


def test_torch_is_not_imported(tmp_path: Path) -> None:
    project(tmp_path, a_py="import torch\nx = torch.linalg.det(y).cuda()\n")
    program = (
        "import sys; from pathlib import Path; from npukit.migrate.analysis import analyze;"
        "from npukit.report.rendering import *;"
        "result = analyze([Path('.')]); [render(result.report(), each) for each in Format];"
        "assert result.findings and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_an_installed_package_can_be_named() -> None:
    result = analyze([Path("typer")])
    assert result.files > 5
    assert result.base is not None


@pytest.mark.parametrize("verb", ["analyze", "migrate"])
def test_a_folder_without_code_gets_no_verdict(verb: str, tmp_path: Path, npukit: Any) -> None:
    result = npukit(verb, tmp_path)
    assert (result.returncode, result.stdout) == (2, "") and str(tmp_path) in result.stderr


def test_files_that_cannot_be_read_are_findings(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"import torch\nx.cuda(\xff\xfe)\n")
    (tmp_path / "two.py").write_text("import torch\nprint x.cuda()\n")
    (tmp_path / "cut.ipynb").write_text('{"cells": [{"x.cuda()')
    cells = [{"cell_type": "code", "source": [line]} for line in ("x.cuda()", "def f(:")]
    (tmp_path / "typo.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    result = analyze([tmp_path])
    assert codes(result.findings) == {"NPK001"}
    places = {finding.place.file.name: (finding.place.cell, finding.place.line) for finding in result.findings}
    assert places == {"bad.py": (None, 2), "two.py": (None, 2), "cut.ipynb": (None, 1), "typo.ipynb": (1, 1)}
    assert result.verdict is Verdict.not_known


def test_what_a_notebook_installs_is_a_requirement(tmp_path: Path) -> None:
    lines = ["!pip install torch==2.1.0+cu118", "%pip install -q flash-attn", "# !pip install xformers",
             "!pip install torch --index-url https://download.pytorch.org/whl/cu121"]  # fmt: skip
    cells = [{"cell_type": "code", "source": ["import torch\n", line]} for line in lines]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    found = {(finding.code, finding.place.cell, finding.place.line) for finding in analyze([tmp_path]).errors}
    assert found == {("NPK404", 0, 2), ("NPK403", 1, 2), ("NPK404", 3, 2)}


def test_a_folder_that_cannot_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "good.py").write_text("print()\n")
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    result = analyze([tmp_path])
    assert codes(result.findings) == {"NPK001"} and result.verdict is Verdict.not_known


def test_a_place_has_one_finding(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM nvidia/cuda:12.1.0-devel\nFROM me/mycuda:1\n")
    (tmp_path / "requirements.txt").write_text(
        "nvidia-cublas-cu12\ncupy-cuda12x\ntorch==2.1.0+cu121\n--index-url https://download.pytorch.org/whl/cu121\n"
    )
    places = [
        (finding.place.file.name, finding.place.line) for finding in analyze([tmp_path]).findings if finding.place
    ]
    assert sorted(places) == [
        ("Dockerfile", 1),
        ("Dockerfile", 2),
        *(("requirements.txt", line) for line in (1, 2, 3, 4)),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "import tensorrt as trt",
        "import os, tensorrt",
        "import tensorrt.plugin",
        "from tensorrt import Builder",
        "if x:\n    import tensorrt",
        "from tensorrt import (\n    Builder,\n)",
    ],
)
def test_a_library_is_found_however_it_is_imported(tmp_path: Path, line: str) -> None:
    assert codes(analyze([project(tmp_path, a_py=f"{line}\n")]).findings) == {"NPK401"}


def test_libraries_are_told_with_their_installed_version(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import yaml\nimport triton\n\nx = triton.jit\n")
    (tmp_path / "b.py").write_text("import flash_attn\n")
    whys = {finding.place.file.name: finding.why for finding in analyze([tmp_path]).findings if finding.place}
    assert whys["b.py"].endswith("It is not installed. This file imports it without using it.")
    assert "without using" not in whys["a.py"]
    assert installed_version(Library("PyYAML", ("yaml",), "works", "", packages=("PyYAML",))) == version("PyYAML")


def test_an_installed_library_from_before_it_knew_npus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("import accelerate\naccelerate.Accelerator()\n")
    rule = "npukit.migrate.rules.libraries.installed_version"
    monkeypatch.setattr(rule, lambda _: "0.12.0.dev1")
    findings = analyze([tmp_path], select=["NPK407"]).findings
    assert [finding.code for finding in findings] == ["NPK407"] and "0.12.0.dev1" in findings[0].what
    monkeypatch.setattr(rule, lambda _: "99.1")
    assert not analyze([tmp_path], select=["NPK407"]).findings
