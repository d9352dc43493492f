"""Checkpoints are complete or absent.

All ranks write into checkpoint-N.part, each a mark at the end. When all marks are there, the main rank writes
checkpoint.json, with the hash of every file and of itself, and renames the folder. A kill at any moment leaves the last
complete checkpoint, and a damaged file is noticed before it is read. With several nodes, the output folder must be on a
shared disk.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npukit.errors import NpukitError, NpukitWarning
from npukit.report.hashes import find_damaged, hash_files
from npukit.report.report import counted
from npukit.report.unfinished import UNFINISHED, remove_unfinished
from npukit.report.writing import disk_errors_named
from npukit.train.options import TrainOptions
from npukit.train.remembered import STEPS_PER_EPOCH, as_written, differences

CONTENTS = "checkpoint.json"
WAIT_FOR_RANKS = 1800.0
LOOK_EVERY = 0.01
STILL_THERE = "Free some space: earlier checkpoints are intact, and the same command resumes from the newest."


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    step: int
    run: Mapping[str, Any]  # must be the same in a run that resumes from it
    options: Mapping[str, Any]  # may be changed by a run that resumes from it

    def load(self, rank: int) -> dict[str, Any]:
        """The state of a rank."""
        path = self.folder / f"rank-{rank}.pt"
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch would advise to read it without weights_only
            what = f"{path} cannot be read ({type(error).__name__})"
            raise NpukitError(f"{what}. Delete {self.folder} to resume from an older checkpoint.") from None
        return state


class Checkpoints:
    """The checkpoints of one run in its output folder."""

    def __init__(self, options: TrainOptions, rank: int, run: Mapping[str, Any], noted: Mapping[str, Any]) -> None:
        self._options = options
        self._rank = rank
        self._run = as_written(run)
        self._noted = as_written(noted)
        self._writing: threading.Thread | None = None
        self._error: BaseException | None = None
        self.best_step: int | None = None  # never deleted

    def tidy(self, step: int) -> None:
        """Remove what a killed run left unfinished, and move aside what does not belong to a run that is at `step`."""
        remove_unfinished(self._options.output)
        for part in self._options.output.glob("checkpoint-*.part"):
            shutil.rmtree(part)
        before = self._options.output / "checkpoints.before"
        for folder in _folders(self._options.output):
            if _step(folder) > step:
                before.mkdir(exist_ok=True)
                shutil.rmtree(before / folder.name, ignore_errors=True)
                folder.rename(before / folder.name)

    def newest(self) -> Checkpoint | None:
        """The checkpoint to resume from, if `resume` allows it. Damaged ones are skipped, unsuitable ones refused."""
        resume = self._options.resume
        if resume == "never":
            return None
        if isinstance(resume, Path):
            return self._check(read(resume))
        for folder in reversed(_folders(self._options.output)):
            try:
                checkpoint = _read_in_place(folder)
            except NpukitError as error:
                warnings.warn(f"{error} Looking for an older one.", NpukitWarning, stacklevel=2)
            else:
                return self._check(checkpoint)
        return None

    @property
    def best(self) -> Path | None:
        """The folder of the best evaluation's checkpoint, if one was written."""
        folder = self._options.output / f"checkpoint-{self.best_step}"
        return folder if folder.is_dir() else None

    def read_best(self) -> Checkpoint:
        """The checkpoint of the best evaluation; an error if it is damaged."""
        try:
            return read(self._options.output / f"checkpoint-{self.best_step}")
        except NpukitError as error:
            what = (
                f"{error} It is that of the best evaluation: set load_best to false to keep the model of the last step."
            )
            raise NpukitError(what, on_the_way=True) from None

    def _check(self, checkpoint: Checkpoint) -> Checkpoint:
        for name, then, now in differences(checkpoint.run, self._run):
            what = f"with {name} {then}, but this run has {now}: use the same value"
            if name == STEPS_PER_EPOCH:
                changes = ", ".join(self.changes_since(checkpoint))
                what = f"with other data, {counted(then, 'step')} an epoch instead of {now}" + (
                    f" ({changes})" if changes else ""
                )
                what += ": use the same data and batch size"
            raise NpukitError(f"{checkpoint.folder} was written {what}, or choose another output folder to start over.")
        return checkpoint

    def changes_since(self, checkpoint: Checkpoint) -> list[str]:
        """The options that differ from the checkpoint's, as sentences."""
        return [f"{name} {then} → {now}" for name, then, now in differences(checkpoint.options, self._noted)]

    def save(self, step: int, fill: Callable[[Path], Callable[[], None]], done: Callable[[Path], None]) -> None:
        """Write a checkpoint. `fill(folder)` copies the state and returns a function that writes it, perhaps later."""
        self.finish()
        part = self._options.output / f"checkpoint-{step}.part"
        with disk_errors_named(part.with_suffix(""), part, STILL_THERE):
            part.mkdir(parents=True, exist_ok=True)
            write = fill(part)
        self._done = functools.partial(done, part.with_suffix(""))
        self._writing = threading.Thread(target=self._write_apart, args=(step, part, write), name="npukit-save")
        self._writing.start()
        if not self._options.async_save:
            self.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._writing:
            self._writing.join()
            self._writing = None
            if self._error:
                raise self._error
            self._done()

    def _write_apart(self, step: int, part: Path, write: Callable[[], None]) -> None:
        try:
            with disk_errors_named(part.with_suffix(""), part, STILL_THERE):
                self._write(step, part, write)
        except BaseException as error:
            self._error = error
            shutil.rmtree(part, ignore_errors=True)  # it cannot be used, and its disk space may be needed

    def _write(self, step: int, part: Path, write: Callable[[], None]) -> None:
        write()
        _write_text(part / f"rank-{self._rank}.done", "")
        if self._rank == 0:
            _wait_for([part / f"rank-{rank}.done" for rank in range(self._run["world_size"])])
            for mark in part.glob("*.done"):
                mark.unlink()
            hashes = hash_files(part, (str(path.relative_to(part)) for path in _files(part)))
            contents = {"step": step, "run": self._run, "options": self._noted, "files": hashes}
            _write_text(part / CONTENTS, json.dumps(sealed(contents), indent=2))
            _sync(part)
            final = part.with_suffix("")
            if final.exists():
                shutil.rmtree(final)
            part.rename(final)
            _sync_folder(final.parent)
            self._prune()

    def _prune(self) -> None:
        limit = self._options.save_total_limit
        for folder in _folders(self._options.output)[: -limit or None] if limit else []:
            if _step(folder) != self.best_step:
                # Its name says "unfinished" first: a kill while it is deleted leaves nothing that looks whole.
                shutil.rmtree(folder.rename(folder.with_suffix(".part")))


@contextlib.contextmanager
def written_into(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files are moved into `folder` when all are written."""
    beside = folder / f"{UNFINISHED}model"
    try:
        with disk_errors_named(folder, beside, STILL_THERE):
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            yield beside
            _sync(beside)
            for path in _files(beside):
                final = folder / path.relative_to(beside)
                final.parent.mkdir(parents=True, exist_ok=True)
                path.replace(final)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def read(folder: Path) -> Checkpoint:
    """A complete checkpoint, or an error that says what is missing."""
    try:
        contents = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        is_whole = contents == sealed(contents)
    except (OSError, ValueError, AttributeError, RecursionError):
        raise NpukitError(f"{folder} is not a complete checkpoint: its {CONTENTS} is missing or unreadable.") from None
    if not is_whole:
        raise NpukitError(f"{folder} is damaged: its {CONTENTS} was changed after it was written.")
    if (name := find_damaged(folder, contents["files"])) is not None:
        raise NpukitError(f"{folder} is damaged: {name} is missing, or was changed after it was written.")
    return Checkpoint(folder, contents["step"], contents["run"], contents["options"])


def refuse_different(steps: list[int], output: Path) -> None:
    """Ranks that found checkpoints of different steps would train a mixture of them.

    >>> refuse_different([8, 8], Path("output"))
    """
    if len(set(steps)) > 1:
        listed = ", ".join(f"step {step} on rank {rank}" for rank, step in enumerate(steps))
        raise NpukitError(
            f"The ranks found different checkpoints in {output} ({listed}; 0 is none): put it on a disk that all nodes "
            "share and can read without errors, or name one checkpoint with resume."
        )


def _read_in_place(folder: Path) -> Checkpoint:
    """The same, but its folder must be named after its step, because the newest is chosen by name."""
    checkpoint = read(folder)
    if checkpoint.step != _step(folder):
        raise NpukitError(f"{folder} was renamed: it is the checkpoint of step {checkpoint.step}.")
    return checkpoint


def sealed(contents: Mapping[str, Any]) -> dict[str, Any]:
    """The content of checkpoint.json with a hash over its other values.

    >>> sealed({"step": 4})
    {'step': 4, 'hash': 'd06b88a2…'}
    """
    values = {name: value for name, value in contents.items() if name != "hash"}
    return {**values, "hash": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}


def _folders(output: Path) -> list[Path]:
    folders = [path for path in output.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(folders, key=_step)


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _wait_for(marks: list[Path]) -> None:
    deadline = time.monotonic() + WAIT_FOR_RANKS
    while missing := [mark.stem for mark in marks if not mark.exists()]:
        if time.monotonic() > deadline:
            raise NpukitError(
                f"{', '.join(missing)} wrote no part of the checkpoint to {marks[0].parent}: with several nodes, "
                "output must be on a file system that all of them share."
            )
        time.sleep(LOOK_EVERY)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _sync(folder: Path) -> None:
    """Flush everything below a folder to disk, so that even a power cut after the rename loses nothing."""
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        _sync_folder(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # some network disks cannot
        os.fsync(descriptor)
    os.close(descriptor)
