"""A line of the program whose operators ran with many shapes, by a trace of a run.

`npukit run --device sim --trace-ops ops.json train.py` records the trace, `npukit analyze . --trace ops.json` reads it.
Each shape of each operator is compiled, or its kernel looked up, once: what changes in every step never gets fast.
"""

from __future__ import annotations

from npukit.migrate.rule import Rule
from npukit.report import Severity

rule = Rule("NPK510", "shapes-change", words=(), severity=Severity.warning)
