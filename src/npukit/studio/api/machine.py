"""Machine: what `npukit doctor` and `npukit devices` show."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from npukit.doctor.examine import examine
from npukit.facts.cards import cards
from npukit.machine.status import status
from npukit.report.json import finding_data
from npukit.studio.curves import tail
from npukit.studio.entries import training_folder
from npukit.studio.find import LOG
from npukit.studio.queue import SIMULATED_CARDS
from npukit.studio.runs import LIVE, Record, State
from npukit.studio.studio import Studio


def routes(studio: Studio) -> list[Route]:
    """The routes of this part."""
    return [
        studio.get("/api/machine/cards", _show_cards),
        studio.get("/api/machine/doctor", lambda *_: _diagnosis()),
        studio.get("/api/machine/choices", lambda *_: choices()),
    ]


def _show_cards(studio: Studio, _: dict[str, Any]) -> Any:
    live = [run.record for run in studio.runs if run.state in LIVE and run.state is not State.queued]
    used = [_user(studio, record) for record in live if record.numbers]
    owners = {number: user for user in used if user["device"] == "sim" for number in user["numbers"]}
    simulated = [{"number": number, "run": owners.get(number)} for number in range(SIMULATED_CARDS)]
    return {"status": status(), "runs": used, "simulated": simulated, "command": "npukit devices"}


def _user(studio: Studio, record: Record) -> dict[str, Any]:
    """A run that uses cards, with the memory that it uses of each."""
    folder = training_folder(studio, record)
    made = {name: getattr(record, name) for name in ("id", "title", "device", "numbers")}
    return made | {"memory_gib": tail(folder / LOG).get("memory_gib") if folder else None}


def choices() -> dict[str, Any]:
    """The devices on which a run can be started."""
    kind = status().kind
    real = {"npu": ["npu"], "gpu": ["cuda"], "cpu": []}[kind]
    return {"devices": [*real, "sim", "cpu"], "cards": [card.name for card in cards().values()]}


def _diagnosis() -> dict[str, Any]:
    examination = examine()
    checks = [
        {
            "check": check.title,
            "state": check.state.value,
            "says": check.says,
            "findings": [{**finding_data(trouble.finding), "commands": trouble.commands} for trouble in check.troubles],
        }
        for check in examination.checks
    ]
    return {"good": examination.good, "simulated": examination.simulated, "checks": checks, "command": "npukit doctor"}
