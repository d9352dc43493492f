"""Operators that torch_npu ran on the CPU (found in a trace).

`npukit run --device sim --trace-ops ops.json train.py` records a trace,
`npukit analyze . --trace-ops ops.json` reads it.
`TORCH_NPU_FALLBACK_CPU_DISABLE=1` makes such an operator an error on a card.

    order = torch.argsort(scores.cpu()).to(scores.device)    # once, outside of the step
"""

from __future__ import annotations

from npukit.migrate.rule import Effort, Rule, Severity

rule = Rule(
    "NPK511",
    "ran-on-the-cpu",
    words=(),
    severity=Severity.warning,
    why="Each call copies its tensors to the host and back while the device waits.",
    remedy="Replace the operator, or move it out of the step.",
    effort=Effort(30, 5),
)
