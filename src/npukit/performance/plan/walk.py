"""Walk through a job's real steps on a simulated card: nothing is computed, but memory is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from npukit.errors import NpukitError
from npukit.launch.devices import Wanted, choose
from npukit.launch.run import script_arguments, tied
from npukit.llm.config.options import Config
from npukit.llm.finetune.rank import handed_over
from npukit.llm.tasks import task as tasks
from npukit.performance.plan.walked import Walked, from_json
from npukit.performance.plan.walker import FAILED, FILE
from npukit.performance.plan.walker import STEPS as STEPS_VARIABLE
from npukit.report.unfinished import temporary_folder

STEPS = 2  # the second one has the optimizer's states
MEMORY_MIB = 2**20  # more than any card has, so that a job that does not fit is walked through to the end
WALKER = "npukit.performance.plan.walker"


def walk_config(config: Config, devices: int, card: str, per_node: int | None = None) -> Walked:
    """Walk through the training of a configuration on `devices` cards, without its weights and data.

    >>> walk_config(config, devices=8, card="910B3").peak
    """
    if not tasks.of(config).models_tokens:
        raise NpukitError(f"--walk supports tasks that predict every next token, not {config.task}: leave it out.")
    return _walk(["-m", WALKER], devices, card, per_node or devices, handed_over(config))


def walk_script(command: Sequence[str], devices: int, card: str, per_node: int, auto: bool = False) -> Walked:
    """Walk through the first steps of a script, as rank 0 of `devices`; with `auto` CUDA code runs on the NPU.

    >>> walk_script(["train.py", "--batch", "8"], devices=8, card="910B3", per_node=8).by_role()
    """
    return _walk(["-m", WALKER, *command], devices, card, per_node, {}, auto)


def _walk(
    command: list[str], devices: int, card: str, per_node: int, variables: Mapping[str, str], auto: bool = False
) -> Walked:
    with temporary_folder("walk") as folder:
        file = folder / "walked.json"
        environment = {
            **choose(Wanted.sim, per_node, card).environment(compute="shapes", memory_mib=MEMORY_MIB),
            **_rank_zero(devices, per_node),
            **variables,
            FILE: str(file),
            STEPS_VARIABLE: str(STEPS),
        }
        ended = subprocess.run(
            [sys.executable, *script_arguments(command, auto)], env=tied(environment), capture_output=True, text=True
        )
        result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {FAILED: _last_line(ended.stderr)}
        if FAILED in result:
            raise NpukitError(f"The walk ended early: {result[FAILED].removesuffix('.')}.")
        return from_json(result)


def _rank_zero(devices: int, per_node: int) -> dict[str, str]:
    """The environment of a launcher's rank 0; empty for a single process."""
    if devices == 1:
        return {}
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(devices),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }


def _last_line(errors: str) -> str:
    lines = [line.strip() for line in errors.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("npukit: ") if lines else "its process was killed"
