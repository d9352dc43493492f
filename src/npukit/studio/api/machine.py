"""Machine: what `npukit doctor` and `npukit devices` show."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from npukit.doctor.examine import examine
from npukit.facts.cards import cards
from npukit.machine.status import status
from npukit.report.json import finding_data
from npukit.studio.queue import SIMULATED_CARDS
from npukit.studio.runs import LIVE, State
from npukit.studio.studio import Studio


def routes(studio: Studio) -> list[Route]:
    def cards(_: dict[str, Any]) -> Any:
        found = status()
        live = [run.record for run in studio.runs if run.state in LIVE and run.state is not State.queued]
        used = [
            {"id": each.id, "title": each.title, "device": each.device, "numbers": each.numbers}
            for each in live
            if each.numbers
        ]
        return {"status": found, "runs": used, "simulated_cards": SIMULATED_CARDS, "command": "npukit devices"}

    return [
        studio.get("/api/machine/cards", cards),
        studio.get("/api/machine/doctor", lambda _: _diagnosis()),
        studio.get("/api/machine/choices", lambda _: choices()),
    ]


def choices() -> dict[str, Any]:
    """What a run can be started on."""
    kind = status().kind
    real = {"npu": ["npu"], "gpu": ["cuda"], "cpu": []}[kind]
    return {"devices": [*real, "sim", "cpu"], "cards": [card.name for card in cards().values()]}


def _diagnosis() -> dict[str, Any]:
    found = examine()
    checks = [
        {
            "title": check.title,
            "state": check.state.value,
            "says": check.says,
            "findings": [{**finding_data(each.finding), "commands": each.commands} for each in check.troubles],
        }
        for check in found.checks
    ]
    return {"good": found.good, "simulated": found.simulated, "checks": checks, "command": "npukit doctor"}
