"""Lines whose operators ran with many different shapes (found in a trace).

`npukit run --device sim --trace-ops ops.json train.py` records the trace, `npukit analyze . --trace ops.json` reads it.
Each shape of each operator is compiled, or its kernel looked up, once: what changes in every step never gets fast.
"""

from __future__ import annotations

from npukit.migrate.rule import Effort, Rule
from npukit.report import Severity

rule = Rule(
    "NPK510",
    "shapes-change",
    words=(),
    severity=Severity.warning,
    why="Each shape of each operator is compiled or looked up once, so shapes that change in every step stay slow.",
    remedy="Pad to a few fixed shapes, and drop the last incomplete batch.",
    effort=Effort(30, 5),
)
