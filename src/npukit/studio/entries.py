"""The list of runs: those that the studio started, and other trainings in its folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options
from npukit.studio.curves import tail
from npukit.studio.find import CONFIG, LOG, SUMMARY
from npukit.studio.runs import LIVE, Record, Run, State
from npukit.studio.studio import Studio
from npukit.studio.wrapper import read

FOREIGN = "folder:"  # the id of a run that was started elsewhere is its folder
TRAINING = ("train", "sft", "pt", "rlhf")
NOTES = "notes.md"


@dataclass(frozen=True)
class Entry:
    """One run: its record, if the studio started it, and its folder, if it is a training."""

    id: str
    run: Run | None
    folder: Path | None

    @property
    def state(self) -> State:
        if self.run:
            return self.run.state
        code = (read(self.folder / SUMMARY) or {}).get("exit_code") if self.folder else None
        if code is None:
            return State.unfinished
        return State.finished if code == 0 else State.stopped if code in (130, 143) else State.failed

    def row(self, studio: Studio) -> dict[str, Any]:
        """Its row in the list, from the ends of its files only."""
        record = self.run.record if self.run else None
        state = self.state
        row: dict[str, Any] = {"id": self.id, "state": state.value, "foreign": record is None}
        if record:
            row |= {name: getattr(record, name) for name in ("kind", "title", "created", "device", "cards", "command")}
            row |= {"seconds": self.run.seconds if self.run else None, "output": record.output}
            row["project"] = record.details.get("project")
        if self.folder:
            row |= self._training(studio, state)
        return row

    def _training(self, studio: Studio, state: State) -> dict[str, Any]:
        assert self.folder is not None
        summary = (None if state in LIVE else read(self.folder / SUMMARY)) or {}
        last = tail(self.folder / LOG)
        evaluation = summary.get("evaluation")
        name = studio.folders.shown(self.folder)
        row: dict[str, Any] = {
            "title": name,
            "output": name,
            "step": last.get("step"),
            "loss": last.get("loss"),
            "evaluation": (evaluation if isinstance(evaluation, dict) else last).get(
                "eval_loss", last.get("eval_loss")
            ),
            "can_resume": self.run is not None and state not in (*LIVE, State.finished),
            "notes": notes(self.folder)[:200],
        }
        if self.run is None:
            row |= {"kind": "train", "seconds": summary.get("seconds", last.get("seconds"))}
            row["device"] = summary.get("device", "")
            try:
                row["created"] = (self.folder / CONFIG).stat().st_mtime
            except OSError:
                row["created"] = None
        return row


def entries(studio: Studio) -> list[Entry]:
    """All runs, the newest first."""
    mine = [Entry(run.folder.name, run, training_folder(studio, run.record)) for run in studio.runs]
    owned = {entry.folder for entry in mine if entry.folder}
    foreign = [folder for folder in studio.finder.contents().runs if folder not in owned]
    return [*reversed(mine), *(Entry(FOREIGN + studio.folders.shown(folder), None, folder) for folder in foreign)]


def entry(studio: Studio, name: str) -> Entry:
    """The run of this id."""
    if name.startswith(FOREIGN):
        folder = studio.folders.inside(name.removeprefix(FOREIGN))
        if not (folder / LOG).is_file():
            raise NpukitError("There is no such run; it may have been deleted.")
        return Entry(name, None, folder)
    run = studio.runs.find(name)
    return Entry(name, run, training_folder(studio, run.record))


def training_folder(studio: Studio, record: Record) -> Path | None:
    """Where a training writes."""
    return studio.folders.inside(record.output) if record.kind in TRAINING and record.output else None


def configuration(folder: Path | None, run: Run | None) -> dict[str, Any]:
    """The options of a training by their dotted keys."""
    places = [folder / CONFIG] if folder else []
    places += [run.folder / "config.yaml"] if run else []
    for file in places:
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            continue
        if isinstance(content, dict):
            return flat(content)
    return {}


def flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested YAML with dotted keys; an option that is a mapping is kept whole.

    >>> flat({"training": {"epochs": 2}, "model": {"rope": {"rope_type": "yarn"}}})
    {'training.epochs': 2, 'model.rope': {'rope_type': 'yarn'}}
    """
    by_key: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{above}{name}"
        is_group = isinstance(value, dict) and key not in options(Config)
        by_key |= flat(value, f"{key}.") if is_group else {key: value}
    return by_key


def notes(folder: Path) -> str:
    """The user's notes about a run."""
    try:
        return (folder / NOTES).read_text(encoding="utf-8", errors="replace")[:20_000]
    except OSError:
        return ""
