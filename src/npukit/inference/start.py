"""Starts the process that chats, answers rows, evaluates or serves. Nothing here needs torch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from npukit.llm.config.options import Source
from npukit.llm.config.use import Use, Verb
from npukit.packages import require

if TYPE_CHECKING:
    from npukit.launch.devices import Devices

VARIABLE = "NPUKIT_USE"  # not an argument, which every user of the machine can read: it may contain a key
PROCESSES = {"serve": "npukit.inference.server.process"}  # of the other verbs: npukit.inference.process


@dataclass(frozen=True)
class UseJob:
    """The job of a process."""

    verb: Verb
    use: Use
    json: bool = False  # show the result as JSON


def handed_over(job: UseJob) -> dict[str, str]:
    """The variable that passes a job to a process."""
    return {VARIABLE: json.dumps({"verb": job.verb, "use": job.use.model_dump(mode="json"), "json": job.json})}


def taken_over() -> UseJob:
    """The job that this process was started for."""
    job = json.loads(os.environ.pop(VARIABLE))
    return UseJob(job["verb"], Use.model_validate(job["use"]), job["json"])


def start(verb: Verb, use: Use, devices: Devices, data: Sequence[str] = (), json: bool = False) -> NoReturn:
    """Become the process, or start the ranks, that run the job; `data` are rows to answer or files to evaluate on."""
    from npukit.facts.launch_settings import launch_settings
    from npukit.launch.run import run
    from npukit.llm.models.folder import check_reachable

    require("torch", "transformers", extra="serve" if verb == "serve" else "use")
    check_reachable(use.model.path)
    if data:
        use = use.model_copy(
            update={"data": use.data.model_copy(update={"input": tuple(Source(path=path) for path in data)})}
        )
    settings = devices.environment()
    more = launch_settings(settings, devices.kind == "npu", 1, {}) if verb != "serve" else ()
    settings |= {variable.name: variable.value for variable in more} | handed_over(UseJob(verb, use, json))
    run(["-m", PROCESSES.get(verb, "npukit.inference.process")], settings, ranks=devices.count)
