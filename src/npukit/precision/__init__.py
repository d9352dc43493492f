"""Why the numbers of two runs differ, and which operator is to blame.

`capture` records what a run computes, `compare` aligns two records and names the first operator that differs.

>>> with npukit.precision.capture("dump", level="ops"):
...     train()
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from npukit.precision.recording.recorder import Recorder


def capture(
    output: str | PathLike[str],
    level: Literal["modules", "ops"] = "modules",
    steps: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    tensors: bool = False,
    only: str = "",
    fresh: bool = False,
) -> Recorder:
    """Record what the code in a `with` block computes, in the layout of msprobe's dumps.

    A step ends with `optimizer.step()`, or with `step()` of the object that this returns.
    `only` restricts operators and tensors to the modules below a path. With `fresh`, every tensor is looked at each
    time it is read: that finds writes behind torch's back, and takes longer.

    >>> with capture("dump", level="ops", steps=range(3)):
    ...     train()
    """
    from npukit.precision.recording.options import RecordOptions
    from npukit.precision.recording.recorder import Recorder

    chosen = None if steps is None else tuple(steps)
    return Recorder(RecordOptions(str(output), level, chosen, tuple(ranks) if ranks else None, tensors, fresh, only))
