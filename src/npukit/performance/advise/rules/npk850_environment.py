"""An environment variable slows the job down.

The profile keeps those that torch_npu's profiler records.

example:
    unset ASCEND_LAUNCH_BLOCKING ASCEND_GLOBAL_LOG_LEVEL
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule

rule = Rule(
    "NPK850",
    "environment",
    needs=(),
    devices=("npu",),
    why="These settings are for debugging, and often stay in a script.",
    remedy="Unset the variable for real runs.",
)
SLOW = {
    ("ASCEND_LAUNCH_BLOCKING", "1"): "the host waits for every operator",
    ("ASCEND_GLOBAL_LOG_LEVEL", "0"): "CANN logs everything",
    ("ASCEND_GLOBAL_LOG_LEVEL", "1"): "CANN logs much",
    ("TASK_QUEUE_ENABLE", "0"): "operators are launched without the task queue",
    ("HCCL_DETERMINISTIC", "true"): "collectives are deterministic and slower",
    ("CUDA_LAUNCH_BLOCKING", "1"): "the host waits for every kernel",
}


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    for (name, value), effect in SLOW.items():
        if (rank.trace.environment or {}).get(name) == value:
            ms = rank.split.host if name.endswith("LAUNCH_BLOCKING") else 0.0
            yield rule.advice(rank, f"{name}={value}: {effect}", ms, "profiler_metadata.json", subject=name)
