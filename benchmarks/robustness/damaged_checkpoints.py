"""Damage every byte of a checkpoint: a run uses an older one or says what is wrong; it never ends with other weights.

    python -m benchmarks damaged_checkpoints [--parallel ddp fsdp2 zero3] [--every 1] [--resumes 1] [--seed 0]

A run of 10 steps leaves checkpoint-8 and checkpoint-10: ddp on one simulated NPU, the others on two, each of which
writes its shard of the state. Then checkpoint-10 is damaged in one way after another, and what chooses the checkpoint
to resume from is asked: a bit of every byte of every file (every bit of checkpoint.json) flipped, each file cut or
deleted, each two files swapped, each file swapped with that of checkpoint-8, and the folders swapped. Some of these
runs are really resumed, and their final weights compared with those of the undisturbed run, bit by bit.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from benchmarks.robustness import resume as job

from npukit.errors import NpukitError
from npukit.simulate import activate

STEPS, OLDER, NEWER = 10, "checkpoint-8", "checkpoint-10"
RANKS = {"ddp": 1, "fsdp2": 2, "zero2": 2, "zero3": 2}
SAME, OTHER = "not noticed, the same values", "OTHER VALUES"


def damages(output: Path) -> Iterator[str]:
    """Do one damage after another, say its kind, and mend it again."""
    newer, older = output / NEWER, output / OLDER
    files = [path for path in sorted(newer.rglob("*")) if path.is_file()]
    for path in files:
        yield from flipped(path)
        yield from cut(path)
        yield from swapped("swapped with the older file", path, older / path.relative_to(newer))
    for first, second in itertools.combinations(files, 2):
        yield from swapped("two files swapped", first, second)
    yield from swapped("folders swapped", newer, older)


def flipped(path: Path) -> Iterator[str]:
    """One bit of every byte, and every bit of the list of files."""
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(content):
            for bit in range(8) if path.name == "checkpoint.json" else [place % 8]:
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), place)
                yield "a bit flipped"
            os.pwrite(file.fileno(), bytes([byte]), place)


def cut(path: Path) -> Iterator[str]:
    content = path.read_bytes()
    for kind, left in (("emptied", 0), ("cut in half", len(content) // 2), ("cut by a byte", len(content) - 1)):
        path.write_bytes(content[:left])
        yield kind
    path.unlink()
    yield "deleted"
    path.write_bytes(content)


def swapped(kind: str, first: Path, second: Path) -> Iterator[str]:
    _swap(first, second)
    yield kind
    _swap(first, second)


def _swap(first: Path, second: Path) -> None:
    beside = first.with_name("beside")
    first.rename(beside)
    second.rename(first)
    beside.rename(second)


def try_every_damage(output: Path, every: int) -> dict[str, Counter[str]]:
    """What would be resumed from after each damage, counted by its kind."""
    from npukit.train.checkpoint import Checkpoints, read
    from npukit.train.options import TrainOptions

    older, newer = read(output / OLDER), read(output / NEWER)
    outcomes: dict[str, Counter[str]] = {}
    for kind in itertools.islice(damages(output), 0, None, every):
        try:
            chosen = Checkpoints(TrainOptions(output=output), 0, newer.run, newer.options).newest()
        except NpukitError:
            result = "says what is wrong"
        else:
            known = {None: "starts over", older.folder: "uses the older one", newer.folder: SAME}
            sound = chosen is None or chosen in (older, newer)
            result = known[chosen.folder if chosen else None] if sound else OTHER
        outcomes.setdefault(kind, Counter())[result] += 1
    return outcomes


def resume_some(output: Path, ranks: int, parallel: str, number: int, chance: random.Random) -> bool:
    """Really resume after so many damages of each kind; whether all ended with the same weights."""
    kinds = list(damages(output))
    same, chosen = True, set()
    for kind in set(kinds):
        places = [index for index, other in enumerate(kinds) if other == kind]
        chosen.update(chance.sample(places, min(number, len(places))))
    for index, kind in enumerate(damages(output)):
        if index in chosen:
            disturbed = output.with_name(f"resumed-{index}")
            for name in (OLDER, NEWER):
                shutil.copytree(output / name, disturbed / name)
            failed = job.attempt(disturbed, ranks, STEPS, parallel)
            equal = not failed and job.equal(output, disturbed)
            log = disturbed.with_suffix(".log").read_text()
            began = next((line for line in log.splitlines() if line.startswith("resuming")), "starting over")
            print(f"  {kind}: {began}, {'bit-identical' if equal else failed or 'OTHER WEIGHTS'}", flush=True)
            same = same and equal
            shutil.rmtree(disturbed)
    return same


def main(
    parallel: Annotated[tuple[str, ...], RANKS] = ("ddp", "fsdp2", "zero3"),
    every: Annotated[int, "try only every n-th of the damages"] = 1,
    resumes: Annotated[int, "runs that are really resumed, of each kind of damage"] = 1,
    seed: int = 0,
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    activate(devices=2)
    for module in ("torch._dynamo", "npukit.train.trainer"):  # every rank is a fork of this process
        importlib.import_module(module)
    warnings.simplefilter("ignore")
    sound = True
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for way in parallel:
            ranks = RANKS[way]
            (Path(folder) / way).mkdir()
            output = job.undisturbed(Path(folder) / way, ranks, STEPS, parallel=way)
            files = [path for path in (output / NEWER).rglob("*") if path.is_file()]
            size, began = sum(path.stat().st_size for path in files), time.monotonic()
            outcomes = try_every_damage(output, every)
            total = sum(counted.total() for counted in outcomes.values())
            print(f"{way}, {ranks} rank{'s' * (ranks > 1)}: {len(files)} files, {size:,} bytes, ", end="")
            print(f"{total:,} damages in {time.monotonic() - began:.0f} s", flush=True)
            for kind, counted in outcomes.items():
                print(f"  {kind}: " + ", ".join(f"{count:,} {result}" for result, count in counted.items()), flush=True)
            chance = random.Random(seed)
            sound &= not any(OTHER in counted for counted in outcomes.values())
            sound &= resume_some(output, ranks, way, resumes, chance)
    sys.exit(not sound)
