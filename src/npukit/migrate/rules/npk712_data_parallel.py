"""torch.nn.DataParallel: one process for several cards.

To replace it: start one process per card (torchrun --nproc_per_node=N train.py), call
torch.distributed.init_process_group, select the card by LOCAL_RANK, wrap the model in DistributedDataParallel(model,
device_ids=[local_rank]), and give the data loader a DistributedSampler.

bad:
    import torch
    model = torch.nn.DataParallel(model)

good:
    import torch
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK712",
    "data-parallel",
    words=("DataParallel", "data_parallel", "replicate"),
    why="It replicates the model across cards within one process, which torch_npu does not support.",
    remedy="Start one process per card with torchrun, and use DistributedDataParallel and a DistributedSampler.",
    effort=Effort(120, 20),
)


@rule.on_function(
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.data_parallel",
    "torch.nn.parallel.data_parallel.DataParallel",
    "torch.nn.parallel.replicate",  # what DataParallel does, by hand
    "torch.nn.parallel.replicate.replicate",
)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    conditional = any(isinstance(ancestor, (ast.If, ast.IfExp)) for ancestor in file.ancestors(call))
    severity = Severity.warning if conditional else None
    yield rule.finding((file, call), "DataParallel does not run on NPUs", severity=severity)
