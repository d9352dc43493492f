"""Lines whose operators ran with many different shapes (found in a trace).

`npukit run --device sim --trace-ops ops.json train.py` records a trace,
`npukit analyze . --trace-ops ops.json` reads it.

    batch = tokenizer(texts, padding=True, pad_to_multiple_of=128, return_tensors="pt")
    loader = DataLoader(data, batch_size=32, drop_last=True)
"""

from __future__ import annotations

from npukit.migrate.rule import Effort, Rule, Severity

rule = Rule(
    "NPK510",
    "shapes-change",
    words=(),
    severity=Severity.warning,
    why="Each shape of each operator is compiled or looked up once, so shapes that change in every step stay slow.",
    remedy="Pad to a few fixed shapes, and drop the last incomplete batch.",
    effort=Effort(30, 5),
)
