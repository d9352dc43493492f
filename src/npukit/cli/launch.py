"""npukit launch"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.help import DEVICES, OUTPUT
from npukit.cli.options import AutoOption, DeviceOption, DevicesOption, FaultOption, JsonOption, NodesOption
from npukit.cli.results import expect, show
from npukit.errors import NpukitError
from npukit.launch.devices import Wanted

NodeRank = Annotated[
    int | None,
    typer.Option(
        "--node-rank",
        "--node_rank",
        min=0,
        show_default=False,
        rich_help_panel=DEVICES,
        help="Rank of this machine, counted from 0.",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        metavar="ADDR:PORT",
        rich_help_panel=DEVICES,
        help="Address and port of node 0.",
    ),
]
# torchrun's options for --master.
MasterAddr = Annotated[str, typer.Option("--master-addr", "--master_addr", hidden=True)]
MasterPort = Annotated[int, typer.Option("--master-port", "--master_port", hidden=True)]
Hostfile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        rich_help_panel=DEVICES,
        help="File with one host per line; the first is node 0.",
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option("--max-restarts", "--max_restarts", min=0, help="How often to restart all ranks after a failure."),
]
LogDir = Annotated[
    Path | None,
    typer.Option(
        "--log-dir",
        "--log_dir",
        metavar="FOLDER",
        show_default="a new one in npukit-logs",
        rich_help_panel=OUTPUT,
        help="Folder for the logs of the ranks.",
    ),
]


def launch(
    command: Annotated[list[str], typer.Argument(metavar="SCRIPT|-m MODULE [ARGS]", show_default=False)],
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    nnodes: NodesOption = None,
    node_rank: NodeRank = None,
    master: Master = "",
    master_addr: MasterAddr = "",
    master_port: MasterPort = 29500,
    hostfile: Hostfile = None,
    auto: AutoOption = False,
    max_restarts: MaxRestarts = 0,
    log_dir: LogDir = None,
    fault: FaultOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command and the variables.")] = False,
    json: JsonOption = False,
) -> None:
    """Start a job of several processes, on one machine or many.

    Run it on every machine. Without options about nodes it reads the variables of SLURM, Kubernetes or ModelArts.
    When a process fails, all of them end and the first error is explained. torchrun's options of this
    kind work as well, such as --nproc_per_node and --master_addr.

    Examples:
        npukit launch --devices 8 train.py  # eight ranks on this machine
        npukit launch --nnodes 2 --node-rank 0 --master 10.0.0.1:29500 --devices 8 train.py
        npukit launch --devices 8 --dry-run train.py  # show what would be started
    """
    from npukit.cli.run import check_auto, check_faults, script_of, started
    from npukit.launch.commands import is_shell_script
    from npukit.launch.devices import choose
    from npukit.launch.launch import plan_job, start
    from npukit.launch.nodes import NodePlan, from_environment, from_hostfile, parse_master
    from npukit.machine.network import names_of_this_host

    command = script_of(command)
    if is_shell_script(Path(command[0])):
        raise NpukitError(
            f"launch starts the ranks of a Python script; for a shell script use `npukit run --devices N {command[0]}`."
        )
    master = master or (f"{master_addr}:{master_port}" if master_addr else "")
    if hostfile and not hostfile.is_file():
        raise NpukitError(f"There is no hostfile {hostfile}: write one host per line, such as `worker-1 slots=8`.")
    if hostfile:
        plan = from_hostfile(hostfile.read_text(), names_of_this_host())
    elif nnodes and node_rank is not None and master:  # a scheduler's variables are not needed
        plan = NodePlan(nnodes, node_rank)
    else:
        plan = from_environment(os.environ)
    if (nnodes or plan.nodes) > 1 and plan.nodes == 1 and not (master and node_rank is not None):
        raise NpukitError("A job on several nodes needs --node-rank and --master ADDR:PORT on each of them.")
    changes: dict[str, object] = {} if nnodes is None else {"nodes": nnodes}
    if node_rank is not None:
        changes["rank"] = node_rank
    if master:
        changes["master"], changes["port"] = parse_master(master)
    plan = dataclasses.replace(plan, **changes)  # type: ignore[arg-type]
    chosen = choose(device, devices or plan.ranks)
    check_auto(auto, chosen)
    check_faults(fault, chosen)
    job = plan_job(command, plan, chosen, os.environ, auto, max_restarts, log_dir)
    variables = {variable.name: variable.value for variable in job.variables}
    if dry_run:
        show({"command": job.command, "variables": variables, "layout": job.layout}, str(job), json)
    else:
        about = {"nnodes": plan.nodes, "node_rank": plan.rank, "logs": job.logs, "variables": variables}
        expect(started(command, chosen, **about))
        start(job, chosen.environment(faults=fault or ()))
