"""Turn a single-card training script into a distributed one (only with --distributed).

before:
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        for x, y in loader:
            ...
    torch.save(model.state_dict(), "model.pt")

after (npu):
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("hccl")
    loader = DataLoader(data, batch_size=32, sampler=torch.utils.data.DistributedSampler(data))
    model = Net().to(device)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            ...
    if torch.distributed.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    torch.distributed.destroy_process_group()

Start the result with `npukit launch --devices N train.py` or torchrun. The batch size is per card. Loaders that are not
used for training stay unchanged, so every process evaluates on all of the data. A script is rewritten as a whole or not
at all: if the model, the optimizer or the training data loader is not in the file, that is reported instead.
"""

from __future__ import annotations

import ast

from npukit.migrate.distributed import Unseen, distributed
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule

rule = Rule(
    "NPK170",
    "one-card-script",
    words=("backward",),
    fixes=True,
    distributes=True,
    why="Training on several cards needs one process per card, which share the data and average gradients.",
    remedy="Start one process per card, and wrap the model in DistributedDataParallel.",
    effort=Effort(15, 5),
)


@rule.on(ast.Module)
def check(module: ast.Module, file: PythonFile, goal: Goal) -> Findings:
    if not goal.distributed:
        return
    try:
        edits = distributed(file, goal)
    except Unseen as unseen:
        yield rule.finding(
            (file, unseen.node),
            f"not made distributed: {unseen.what}",
            why="A partly distributed script trains incorrectly without any error.",
            remedy=unseen.remedy,
            subject=unseen.part,
        )
        return
    if edits:
        yield rule.finding(
            (file, module.body[0]),
            "this script trains on a single card",
            edits=edits,
            evidence="whole file",
        )
