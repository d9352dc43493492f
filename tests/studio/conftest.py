from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.studio.browser import Browser, Server

ROOT = Path(__file__).parents[2]
HOSTILE = "<img src=x onerror='document.title=1'>"
NOTEBOOK = [["import torch\n", "x = torch.ones(2).cuda()\n"], ["print(x)\n", "torch.cuda.synchronize()"]]
LEFT_OVER = "import torch\nfrom torch.utils.cpp_extension import load\n\nkernel = load('k', ['k.cu'])\n"
FAILED = (
    "Traceback (most recent call last):\nRuntimeError: EI0006: Getting socket times out. Reason: 1. <b>rank 1</b>\n"
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a CUDA project, the demo's model and data, a run that failed, and markup in names and lines."""
    work = tmp_path_factory.mktemp("a workspace 工作 whose name is long")
    shutil.copytree(ROOT / "examples" / "cuda_project", work / "project")
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [cell | {"source": source} for source in NOTEBOOK]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (work / "project" / "explore.ipynb").write_text(json.dumps(notebook, indent=1))
    (work / "kernels").mkdir()
    (work / "kernels" / "ops.py").write_text(LEFT_OVER)
    make = runpy.run_path(str(ROOT / "examples" / "finetune" / "make.py"))
    make["main"].__globals__["sys"].argv[1:], before = [str(work)], sys.argv[1:]
    make["main"]()
    sys.argv[1:] = before
    (work / "data" / "dataset_info.json").write_text('{"cards": {"file_name": "cards.jsonl"}}')
    _write_hostile(work)
    _write_failed(work)
    return work


def _write_hostile(work: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8), "orange").save(work / "data" / "<b>.png")
    rows = [
        {"instruction": HOSTILE, "output": "<script>document.title=2</script>"},
        {"instruction": "", "output": HOSTILE},
        {"instruction": "What is it?", "output": "A square.", "images": ["<b>.png"]},
    ]
    (work / "data" / "hostile.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = work / "runs" / "<b onclick=alert(1)>old"
    run.mkdir(parents=True)
    (run / "npukit.yaml").write_text(f'model: {{path: model}}\ntraining: {{output: "{HOSTILE}"}}\n')
    turns = [{"role": "user", "content": "Say 1."}, {"role": "assistant", "content": HOSTILE}]
    answer = {"messages": turns, "reward": 0.25, "rewards": {"low": 0.25}, "advantage": 1.0, "tokens": 8}
    lines = ["half a line", *(json.dumps({"step": step, **answer}) for step in (98, 99))]
    (run / "completions.jsonl").write_text("\n".join(lines) + "\n")
    (run.parent / os.fsdecode(b"caf\xe9")).mkdir()
    for file in ("npukit.yaml", "log.jsonl"):
        (run.parent / os.fsdecode(b"caf\xe9") / file).touch()
    (run / "log.jsonl").write_text("".join(f'{{"step": {n}, "loss": {3 - n / 50}}}\n' for n in range(1, 100)))


def _write_failed(work: Path) -> None:
    """A training of which rank 1 failed."""
    from npukit.studio.runs import Runs
    from npukit.studio.wrapper import EXIT, LOG, write

    run = Runs(work / ".npukit" / "studio").add("train", [], work, title="runs/failed", output="runs/failed")
    (run.folder / LOG).write_text("rank 1 ended with code 1\n")
    (run.folder / "ranks").mkdir()
    for rank, text in enumerate(("all well\n", FAILED)):
        (run.folder / "ranks" / f"rank{rank}.log").write_text(text)
    write(run.folder / EXIT, {"code": 1, "ended": 0.0})


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.kill()
    for file in (folder / ".npukit/studio/runs").glob("*/process.json"):  # runs go on without a server
        try:
            os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture(scope="session")
def browser(server: Server) -> Iterator[Browser]:
    """One for all tests, which stand in the order in which a user would go."""
    pytest.importorskip("selenium.webdriver")
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("no Chromium with its driver here")
    made = Browser(server)
    yield made
    made.driver.quit()
