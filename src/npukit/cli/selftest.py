"""npukit selftest"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import CardOption, DeviceOption, DevicesOption, JsonOption, file_place, output_option
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

FILE = Path("npukit-selftest.json")
SIMULATED_COUNT = 2  # without --devices: collectives need two, and the CPU and simulated NPUs can be any number


def selftest(
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            show_default=False,
            help="Only this group: operators, formulas, collectives, training, serving or precision.",
        ),
    ] = None,
    output: Annotated[Path, output_option("File for the results, to send back.", "FILE", str(FILE), file_place)] = FILE,
    json: JsonOption = False,
) -> None:
    """Run npukit's own checks on this device, and keep the results.

    Operators, collectives, training, serving and precision are compared with reference results that come with
    npukit. Each group runs in its own process: a crash or a hang is a failed check. The file contains no secrets,
    paths, user or host names. Exits with code 0 if all checks passed and 1 if not.

    Examples:
        npukit selftest  # on the NPUs of this machine
        npukit selftest --device sim  # on two simulated NPUs
        npukit selftest --group collectives --devices 8
    """
    from dataclasses import asdict

    from npukit.doctor.data import as_data
    from npukit.doctor.examine import examine
    from npukit.launch.devices import choose
    from npukit.machine.versions import versions
    from npukit.packages import require
    from npukit.report.redact import redacted
    from npukit.report.result import envelope
    from npukit.report.writing import write_json
    from npukit.selftest.result import group_line, verdict
    from npukit.selftest.run import GROUPS
    from npukit.selftest.run import selftest as run

    if unknown := [name for name in group or () if name not in GROUPS]:
        raise NpukitError(f"There is no group {unknown[0]}: choose from {', '.join(GROUPS)}.")
    require("torch", "numpy", extra="train")  # torch needs numpy to send objects between ranks
    any_number = device in (Wanted.sim, Wanted.cpu)
    chosen = choose(device, devices or (SIMULATED_COUNT if any_number else None), card)
    print(f"Self-test on {chosen}: a few minutes.", flush=True)
    result = run(
        chosen,
        [name for name in GROUPS if not group or name in group],
        on_group=lambda group, checks: print(group_line(group, checks), flush=True),
    )
    data = {
        "device": result.device,
        "simulated": chosen.simulated,
        "good": result.good,
        "groups": result.counts(),
        "versions": versions(),
        "failed": [asdict(check) for check in result.failed],
    }
    everything = {
        **data,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "doctor": as_data(examine()),
        "checks": [asdict(check) for check in result.checks],
    }
    code = 0 if result.good else 1
    write_json(output, redacted(envelope("npukit selftest", everything, code)))
    text = f"{verdict(result)}\n"
    text += f"Wrote {output}. Please attach it to an issue (template: Tried on a card), whether it passed or not."
    show({**data, "file": str(output)}, text, json, code)
