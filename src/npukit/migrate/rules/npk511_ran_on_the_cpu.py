"""An operator that torch_npu computed on the CPU, by a trace of a run.

`npukit run --device sim --trace-ops ops.json train.py` records the trace, `npukit analyze . --trace ops.json` reads it.
The tensors are copied to the host and back in every call, and the device waits.
"""

from __future__ import annotations

from npukit.migrate.rule import Rule
from npukit.report import Severity

rule = Rule("NPK511", "ran-on-the-cpu", words=(), severity=Severity.warning)
