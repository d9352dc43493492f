"""Train: every option as data for a form, what is wrong with the values, what the run would take, and its start."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from starlette.routing import Route

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.facts.cards import card as find_card
from npukit.llm.config.explain import as_data
from npukit.llm.config.given import Mistakes
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options
from npukit.llm.reading.read import Reading, read
from npukit.performance.plan.fit import find_fit
from npukit.performance.plan.job import plan
from npukit.studio.folders import Folders
from npukit.studio.studio import Studio, Wrong, number, text

FIRST = (  # what most people set
    "model.path",
    "task",
    "data.train",
    "data.validation",
    "data.template",
    "data.cutoff",
    "tuning.method",
    "tuning.rank",
    "training.output",
    "training.epochs",
    "training.batch_size",
    "training.accumulation",
    "training.learning_rate",
    "training.precision",
    "training.parallel",
    "training.eval_every",
    "training.save_every",
    "training.log_every",
)
ESTIMATED = (
    *("fits", "memory", "usable", "steps", "rows", "rows_are_exact"),
    *("tokens_per_step", "parameters", "trained", "days", "card", "devices"),
)
INNER = ("data.train.",)  # options of one data set are written in data.train


def routes(studio: Studio) -> list[Route]:
    """The routes of this part."""
    return [
        studio.get("/api/train/options", _describe),
        studio.post("/api/train/check", _check, changes=False),
        studio.post("/api/train/fit", _fit, changes=False),
        studio.post("/api/train/translate", _translate, changes=False),
        studio.post("/api/train/start", _start),
    ]


def _describe(studio: Studio, _: dict[str, Any]) -> Any:
    options = [option for option in as_data(Config) if not option["key"].startswith(INNER)]
    return {"options": options, "first": FIRST, "card": DEFAULT_CARD}


def _start(studio: Studio, given: dict[str, Any]) -> Any:
    device, count, card = _devices(given)
    written = nested(given.get("values"))
    reading = _read(written, studio.folders, count)
    reading.check_card(card, find_card(card).bf16)
    reading.config.training.check_devices(count)
    return studio.start(
        "train",
        ["--device", device, "--devices", str(count), *(["--card", card] if device == "sim" else [])],
        device,
        count,
        title=str(reading.config.training.output),
        config=as_yaml(written),
        output=str(reading.config.training.output),
        details={"values": given["values"], "device": device, "devices": count, "card": card},
    )


def _check(studio: Studio, given: dict[str, Any]) -> dict[str, Any]:
    """The YAML and the command of a form, what is wrong with it, and what `npukit plan` says."""
    device, count, card = _devices(given)
    written = nested(given.get("values"))
    words = f"--device {device} --devices {count}" + (f" --card {card}" if device == "sim" else "")
    made: dict[str, Any] = {"yaml": as_yaml(written), "command": f"npukit train config.yaml {words}"}
    try:
        reading = _read(written, studio.folders, count)
        reading.check_card(card, find_card(card).bf16)
        reading.config.training.check_devices(count)
    except Mistakes as error:
        return made | {"mistakes": [mistake.text for mistake in error.mistakes], "notes": [], "plan": None}
    except NpukitError as error:
        return made | {"mistakes": [str(error)], "notes": [], "plan": None}
    planned = plan(reading.config, count, card).as_json()
    return made | {"mistakes": [], "notes": reading.notes, "plan": {name: planned[name] for name in ESTIMATED}}


def _fit(studio: Studio, given: dict[str, Any]) -> dict[str, Any]:
    """The change of `npukit plan --fit`, with what it needs of a card."""
    _, count, card = _devices(given)
    fit = find_fit(_read(nested(given.get("values")), studio.folders, count).config, count, card)
    memory = fit.plan.memory.total if fit.plan.memory else None
    made = {"kind": fit.kind, "changes": fit.changes, "devices": fit.devices}
    return made | {"memory": memory, "usable": fit.plan.usable}


def _translate(studio: Studio, given: dict[str, Any]) -> dict[str, Any]:
    """The values of an uploaded file of npukit, LLaMA-Factory or ms-swift, and notes on what was translated."""
    with tempfile.TemporaryDirectory(prefix="npukit-upload-") as folder:
        file = Path(folder) / "upload.yaml"
        file.write_text(text(given, "text"), encoding="utf-8")
        try:
            reading = read(file, [], os.environ, files=False)
        except Mistakes as error:
            lines = [f"{_line(mistake.place.line)}{mistake.text}" for mistake in error.mistakes]
            return {"mistakes": lines, "values": {}, "notes": [], "dialect": ""}
    chosen = reading.config.model_dump(mode="json", exclude_defaults=True)
    studio.folders.check(chosen)
    known = options(Config)
    values = {key: value for key, value in _flat(chosen, known) if key in known}
    return {"values": values, "notes": reading.notes, "dialect": reading.dialect, "mistakes": []}


def nested(values: Any) -> dict[str, Any]:
    """{"training.epochs": 2} as YAML nests it; unknown keys stay, and are refused as they would be in a file."""
    if not isinstance(values, dict) or len(values) > 1000:
        raise Wrong("values should be an object.")
    made: dict[str, Any] = {}
    for key, value in values.items():
        *above, name = str(key).split(".")
        node = made
        for part in above:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise Wrong(f"{key} is given twice.")
        node[name] = value
    return made


def as_yaml(values: dict[str, Any]) -> str:
    """The file of a form."""
    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False, width=120)


def _read(values: dict[str, Any], folders: Folders, ranks: int) -> Reading:
    folders.check(values)
    with tempfile.TemporaryDirectory(prefix="npukit-form-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(as_yaml(values), encoding="utf-8")
        reading = read(file, [], os.environ, ranks=ranks)
    folders.check(reading.config.model_dump(mode="json"))
    folders.inside(str(reading.config.training.output))
    return reading


def _devices(given: dict[str, Any]) -> tuple[str, int, str]:
    device = text(given, "device", "sim")
    if device not in ("npu", "cuda", "sim", "cpu"):
        raise Wrong("device should be npu, cuda, sim or cpu.")
    return device, number(given, "devices", 1, 1, 1024), find_card(text(given, "card", DEFAULT_CARD)).name


def _flat(values: dict[str, Any], known: Any, above: str = "") -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = []
    for name, value in values.items():
        key = f"{above}{name}"
        made += _flat(value, known, f"{key}.") if isinstance(value, dict) and key not in known else [(key, value)]
    return made


def _line(line: int | None) -> str:
    return f"{line}: " if line else ""
