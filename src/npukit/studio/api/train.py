"""The page Train: every option as data for a form, mistakes in values, the plan of the run, and its start."""

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
from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.config.schema import options
from npukit.llm.reading.read import Reading, read
from npukit.llm.tasks.task import of as task_of
from npukit.performance.plan.fit import find_fit
from npukit.performance.plan.job import plan
from npukit.studio.entries import flat
from npukit.studio.folders import Folders
from npukit.studio.studio import BadRequest, Studio, device_and_count, text

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


def _start(studio: Studio, request: dict[str, Any]) -> Any:
    device, count, card = _devices(request)
    values = nested(request.get("values"))
    output = str(_read(values, studio.folders, count, card).config.training.output)
    return studio.start(
        "train",
        _words(device, count, card),
        device,
        count,
        title=output,
        config=as_yaml(values),
        output=output,
        details={"values": request["values"], "device": device, "devices": count, "card": card},
    )


def _check(studio: Studio, request: dict[str, Any]) -> dict[str, Any]:
    """The YAML and the command of a form, its mistakes, and the result of `npukit plan`."""
    device, count, card = _devices(request)
    values = nested(request.get("values"))
    command = " ".join(["npukit train config.yaml", *_words(device, count, card)])
    answer: dict[str, Any] = {"yaml": as_yaml(values), "command": command, "mistakes": [], "notes": [], "plan": None}
    try:
        reading = _read(values, studio.folders, count, card)
    except Mistakes as error:
        return answer | {"mistakes": [mistake.text for mistake in error.mistakes]}
    except NpukitError as error:
        return answer | {"mistakes": [str(error)]}
    planned = plan(reading.config, count, card).as_json()
    return answer | {"notes": reading.notes, "plan": {name: planned[name] for name in ESTIMATED}}


def _fit(studio: Studio, request: dict[str, Any]) -> dict[str, Any]:
    """The changes of `npukit plan --fit`, with the memory that it needs."""
    _, count, card = _devices(request)
    fit = find_fit(_read(nested(request.get("values")), studio.folders, count, card).config, count, card)
    memory = fit.plan.memory.total if fit.plan.memory else None
    return {
        "kind": fit.kind,
        "changes": fit.changes,
        "devices": fit.devices,
        "memory": memory,
        "usable": fit.plan.usable,
    }


def _translate(studio: Studio, request: dict[str, Any]) -> dict[str, Any]:
    """The values of an uploaded file of npukit, LLaMA-Factory or ms-swift, and notes on what was translated."""
    with tempfile.TemporaryDirectory(prefix="npukit-upload-") as folder:
        file = Path(folder) / "upload.yaml"
        file.write_text(text(request, "text"), encoding="utf-8")
        try:
            reading = read(file, [], os.environ, files=False)
        except Mistakes as error:
            lines = [f"{_line(mistake.place.line)}{mistake.text}" for mistake in error.mistakes]
            return {"mistakes": lines, "values": {}, "notes": [], "dialect": ""}
    chosen = reading.config.model_dump(mode="json", exclude_defaults=True)
    studio.folders.check(chosen)
    known = options(Config)
    values = {key: value for key, value in flat(chosen).items() if key in known}
    return {"values": values, "notes": reading.notes, "dialect": reading.dialect, "mistakes": []}


def nested(values: Any) -> dict[str, Any]:
    """{"training.epochs": 2} nested as in YAML; unknown keys are kept, and refused later as in a file."""
    if not isinstance(values, dict) or len(values) > 1000:
        raise BadRequest("values should be an object.")
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, name = str(key).split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise BadRequest(f"{key} is given twice.")
        node[name] = value
    return tree


def as_yaml(values: dict[str, Any]) -> str:
    """The YAML file of a form."""
    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False, width=120)


def _read(values: dict[str, Any], folders: Folders, ranks: int, card: str) -> Reading:
    folders.check(values)
    with tempfile.TemporaryDirectory(prefix="npukit-form-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(as_yaml(values), encoding="utf-8")
        reading = read(file, [], os.environ, ranks=ranks)
    folders.check(reading.config.model_dump(mode="json"))
    folders.inside(str(reading.config.training.output))
    reading.check_card(card, find_card(card).bf16)
    task_of(reading.config).check_ranks(reading.config, ranks)
    return reading


def _devices(request: dict[str, Any]) -> tuple[str, int, str]:
    return *device_and_count(request, most=1024), find_card(text(request, "card", DEFAULT_CARD)).name


def _words(device: str, count: int, card: str) -> list[str]:
    return ["--device", device, "--devices", str(count), *(["--card", card] if device == "sim" else [])]


def _line(line: int | None) -> str:
    return f"{line}: " if line else ""
