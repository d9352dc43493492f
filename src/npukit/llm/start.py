"""Start the training of a resolved configuration: in this process, or as ranks on one or more machines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from npukit.cache import cache_folder
from npukit.errors import NpukitError
from npukit.facts.launch_settings import launch_settings
from npukit.launch.devices import Devices
from npukit.launch.launch import plan_job
from npukit.launch.launch import start as start_job
from npukit.launch.nodes import DEFAULT_PORT, NodePlan, from_environment, is_rank
from npukit.launch.run import run
from npukit.llm.config.options import Config
from npukit.llm.finetune import rank
from npukit.llm.hub import check_hub
from npukit.llm.tasks.task import of as task_of
from npukit.packages import require

# torch's compiled code; torch's own choice is a folder in /tmp that another user can create first
INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def start(
    config: Config, devices: Devices, faults: Sequence[str] = (), names: Mapping[str, str] | None = None
) -> NoReturn:
    """Become the training. If torchrun has started this process as a rank, become that rank.

    `names` are the names of options in the user's configuration, if they are not npukit's.
    """
    check_packages(config)
    check_hubs(config)
    command = ["-m", task_of(config).program(config)]
    environment = {
        INDUCTOR_CACHE: str(cache_folder() / "inductor"),
        **devices.environment(faults=faults),
        **rank.handed_over(config, names),
    }
    if is_rank(environment):
        run(command, environment)
    nodes = nodes_of(os.environ)
    if devices.count > 1 or nodes.nodes > 1:
        start_job(plan_job(command, nodes, devices, environment), environment)
    settings = launch_settings(environment, devices.kind == "npu", 1, {})
    run(command, {**environment, **{variable.name: variable.value for variable in settings}})


def asked_ranks(wanted: int | None, environ: Mapping[str, str]) -> int | None:
    """Return the requested number of processes on this machine: from an option, torchrun, or ms-swift's variable."""
    text = environ.get("LOCAL_WORLD_SIZE") or environ.get("NPROC_PER_NODE")
    if text and (not text.isdigit() or int(text) < 1):
        raise NpukitError(f"NPROC_PER_NODE is {text!r}: it must be a number of processes.")
    return wanted or (int(text) if text else None)


def asked_world_size(wanted: int | None, environ: Mapping[str, str]) -> int:
    """Return the requested number of processes of the whole job. Cards are not counted unless they are requested."""
    if is_rank(environ) and environ.get("WORLD_SIZE", "").isdigit():
        return int(environ["WORLD_SIZE"])
    return (asked_ranks(wanted, environ) or 1) * nodes_of(environ).nodes


def nodes_of(environ: Mapping[str, str]) -> NodePlan:
    """Return the nodes from ms-swift's NNODES, NODE_RANK and MASTER_ADDR or a scheduler, or else this machine alone."""
    nodes = environ.get("NNODES") or "1"
    if nodes == "1" or is_rank(environ):
        return NodePlan() if is_rank(environ) or "NNODES" in environ else from_environment(environ)
    if missing := [name for name in ("NODE_RANK", "MASTER_ADDR") if name not in environ]:
        raise NpukitError(f"NNODES is {nodes}: each machine needs {' and '.join(missing)} too.")
    try:
        node, port = int(environ["NODE_RANK"]), int(environ.get("MASTER_PORT", DEFAULT_PORT))
        return NodePlan(int(nodes), node, environ["MASTER_ADDR"], port, None, "NNODES")
    except ValueError:
        raise NpukitError("NNODES, NODE_RANK and MASTER_PORT must be numbers.") from None


def check_hubs(config: Config) -> None:
    """Check that models and data sets that are not on this machine can be downloaded."""
    from npukit.llm.data.sources import find_table

    if not Path(config.model.path).expanduser().exists():
        check_hub("model", config.model.path, config.model.hub)
    validation = config.data.validation if isinstance(config.data.validation, tuple) else ()
    for source in (*config.data.train, *validation):
        table = find_table(source, config.data, config.model.hub)
        if table.hub:
            check_hub("dataset", table.hub_name, table.hub)


def check_packages(config: Config) -> None:
    """Check the packages that every training needs. Those of an option are declared with it (Needs)."""
    needed = ["torch", "transformers", "accelerate"]
    require(*needed, *(["peft"] if config.tuning.is_adapter else []), extra="train")
    if config.evaluation.predict_with_generate:
        require("rouge_score", "sacrebleu", extra="use")
