"""Fill a small disk and try every way in which npukit writes: for each, say what it told and left, and how it went on.

Run by test_full_disk.py as `full_disk.py DISK MODEL`, where DISK is a file system of some megabytes of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer

from npukit.errors import NpukitError
from npukit.export.merge import merge
from npukit.inference.batch import infer
from npukit.llm.config.options import DataOptions
from npukit.llm.config.use import Use
from npukit.llm.data.prepare import prepare
from npukit.llm.tasks.task import named
from npukit.migrate.journal import write_copy, write_in_place
from npukit.migrate.migration import migrate
from npukit.report.writing import write_text
from npukit.train import Trainer, TrainOptions

PAGE = 4096


def write_report(folder: Path) -> None:
    write_text(folder / "report.html", "x" * 500_000)


def train(folder: Path, **options: Any) -> None:
    usual = {"output": folder / "run", "max_steps": 2, "batch_size": 1, "plot": False, "learning_rate": 1e-3}
    rows = [torch.ones(256)] * 4
    Trainer(nn.Linear(256, 256), TrainOptions(**{**usual, **options}), rows, loss=lambda m, x: m(x).mean()).train()


def tokenise(folder: Path) -> None:
    rows = ({"instruction": f"What is {number}?", "output": "It is what it is." * 9} for number in range(1000))
    DATA.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.environ["NPUKIT_CACHE"] = str(folder / "cache")
    data = DataOptions(train=[str(DATA)], preprocessing_workers=1)
    prepare(data, named("sft"), AutoTokenizer.from_pretrained(MODEL), seed=0)


def answer(folder: Path) -> None:
    if not QUESTIONS.exists():
        QUESTIONS.write_text("".join(json.dumps({"prompt": f"Number {n}?"}) + "\n" for n in range(40)))
    data = {"input": [str(QUESTIONS)], "output": folder / "answers.jsonl"}
    infer(Use(model={"path": str(MODEL)}, data=data, sampling={"temperature": 0, "max_new_tokens": 4}))


def project(folder: Path) -> Path:
    source = folder.with_name("project")
    source.mkdir(exist_ok=True)
    for number in range(40):
        code = "import torch\nx = torch.ones(2).cuda()\n" + "# text\n" * 600
        if not (source / f"{number}.py").exists():
            (source / f"{number}.py").write_text(code)
    return source


def migrate_copy(folder: Path) -> None:
    source = project(folder)
    write_copy(migrate(source), source, folder / "migrated")


def migrate_in_place(folder: Path) -> None:
    write_in_place(migrate(project(folder)), allow_dirty=True)


MODEL = Path(sys.argv[2])
DATA, QUESTIONS = MODEL.with_name("rows.jsonl"), MODEL.with_name("questions.jsonl")
# How many pages the disk has left, and what is to be written then.
WAYS: dict[str, tuple[int, Callable[[Path], None]]] = {
    "report": (32, write_report),
    "checkpoint": (32, lambda folder: train(folder, save_every=1)),
    "weights": (32, lambda folder: train(folder, save_every=None)),
    "log": (2, lambda folder: train(folder, save_every=None, max_steps=60, log_every=1)),
    "tokens": (32, tokenise),
    "export": (32, lambda folder: merge(MODEL, [], folder / "merged")),
    "answers": (3, answer),
    "migrate --output": (32, migrate_copy),
    "migrate --in-place": (60, migrate_in_place),
}


def fill(disk: Path, pages_left: int) -> None:
    status = os.statvfs(disk)
    with (disk / "ballast").open("wb") as file:
        file.write(bytes(status.f_bavail * status.f_frsize - pages_left * PAGE))


def attempt(write: Callable[[Path], None], folder: Path) -> str:
    try:
        write(folder)
    except NpukitError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    disk = Path(sys.argv[1])
    outcomes = {}
    for name, (pages, write) in WAYS.items():
        folder = disk / "here"
        folder.mkdir()
        if "migrate" in name:
            project(folder)
        fill(disk, pages)
        outcome = attempt(write, folder)
        left = [str(path.relative_to(disk)) for path in disk.rglob("*") if is_half_written(path)]
        (disk / "ballast").unlink()
        again = attempt(write, folder)
        outcomes[name] = {"told": outcome, "left": left, "again": again}
        for file in disk.iterdir():
            shutil.rmtree(file)
    print(json.dumps(outcomes))


def is_half_written(path: Path) -> bool:
    return path.name.startswith(".unfinished-") or path.name.endswith(".part") or path.name == ".npukit"


main()
