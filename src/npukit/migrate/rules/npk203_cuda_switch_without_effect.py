"""Settings of cuDNN, cuBLAS and CUDA attention kernels that have no effect on NPUs.

bad:
    import torch
    torch.backends.cudnn.deterministic = True

good:
    import torch
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = False
"""

from __future__ import annotations

from npukit.migrate.lookup import ApiRule
from npukit.migrate.rule import Severity

rule = ApiRule(
    "NPK203",
    "cuda-switch-without-effect",
    kind="ignored",
    states="has no effect on NPUs",
    words=("cudnn", "backends", "matmul_precision"),
    severity=Severity.note,
    why="The setting belongs to a CUDA library that NPUs do not use.",
    remedy="Nothing has to change: it can stay for CUDA. `npukit explain NPK203` lists the settings that NPUs have.",
)
