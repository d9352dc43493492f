"""Find out why two runs compute different numbers, and which operator is responsible.

`capture` records what a run computes; `compare` aligns two recordings and names the first operator that differs.

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
    """Record everything that the code in a `with` block computes, in the layout of msprobe's dumps.

    A step ends with `optimizer.step()`, or when `step()` of the returned object is called. `only` restricts operators
    and tensors to the modules below a path. By default a tensor's statistics are computed once and reused until
    somebody is known to write to it; with `fresh` they are computed at every read, which also catches writes that torch
    does not know of, and is slower.

    >>> with capture("dump", level="ops", steps=range(3)):
    ...     train()
    """
    from npukit.precision.recording.options import RecordOptions
    from npukit.precision.recording.recorder import Recorder

    chosen = None if steps is None else tuple(steps)
    return Recorder(RecordOptions(str(output), level, chosen, tuple(ranks) if ranks else None, tensors, fresh, only))
