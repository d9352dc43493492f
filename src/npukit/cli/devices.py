"""npukit devices"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import JsonOption
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.report.terminal import console

if TYPE_CHECKING:
    from rich.console import Group

    from npukit.machine.status import MachineStatus

SECONDS_BETWEEN = 2.0
KINDS = {"npu": "NPUs", "gpu": "GPUs, no NPU", "cpu": "The CPU; no NPU, no GPU"}


def devices(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the cards of this machine: health, memory, load and links.

    Examples:
        npukit devices
        npukit devices --watch  # like `watch npu-smi info`, in one table
    """
    from npukit.machine.status import status as find

    if json and watch:
        raise NpukitError("--watch is for people and --json for programs: choose one.")
    if json:
        show(find(), "", json)
        return
    if not watch:
        console().print(_shown(find()))
        return
    import time

    from rich.live import Live

    with Live(_shown(find()), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(SECONDS_BETWEEN)
            live.update(_shown(find()), refresh=True)


def _shown(status: MachineStatus) -> Group:
    from rich.console import Group
    from rich.table import Table

    title = KINDS[status.kind] + (" (simulated)" if status.simulated else "")
    rows = [
        {
            "": str(device.number),
            "name": device.name,
            "at": device.place,
            "health": device.health,
            "memory": _memory(device.memory_used_mib, device.memory_total_mib),
            "temp": _with_unit(device.temperature_c, " °C"),
            "power": _with_unit(device.power_w, " W"),
            "busy": _with_unit(device.busy_percent, "%"),
            "processes": "\n".join(device.processes),
        }
        for device in status.devices
    ]
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    parts: list[Table | str] = [table, *([status.trouble] if status.trouble else [])]
    if len(status.topology.names) > 1:
        links = Table("", *status.topology.names, "CPUs", title="Links")
        for name, kinds, cpus in zip(status.topology.names, status.topology.links, status.topology.cpus, strict=True):
            cells = [*kinds, *[""] * len(status.topology.names)][: len(status.topology.names)]
            links.add_row(name, *cells, cpus)
        parts.append(links)
    return Group(*parts)


def _memory(used: int | None, total: int | None) -> str:
    return "" if used is None or total is None else f"{used / 1024:.1f} of {total / 1024:.0f} GiB"


def _with_unit(number: float | None, unit: str) -> str:
    return "" if number is None else f"{number:.0f}{unit}"
