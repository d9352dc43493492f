"""The contents of a dump: the common form that readers produce and `compare` consumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUCKETS = 16  # numbers in a sketch


@dataclass(frozen=True)
class Value:
    """A tensor or scalar that a call received or returned."""

    dtype: str = ""  # without "torch."; empty if it is not a tensor
    shape: tuple[int, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    norm: float | None = None
    nan: int | None = None  # how many elements; None if the dump does not say
    inf: int | None = None
    hash: str = ""
    sketch: tuple[float, ...] = ()
    maker: str = ""  # the row that produced it, if known
    requires_grad: bool | None = None  # None if the dump does not say
    file: Path | None = None  # the file with the tensor itself
    scalar: bool | int | float | str | None = None

    @property
    def is_tensor(self) -> bool:
        return bool(self.dtype)

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def count(self) -> int:
        number = 1
        for size in self.shape:
            number *= size
        return number


@dataclass(frozen=True)
class Call:
    """One row of a dump: a module, an operator, the gradients of a module's parameters, or an optimizer's step."""

    name: str  # as it is in the dump
    kind: str  # module, op, gradients or optimizer
    op: str  # the operator, or the class of the module
    path: str  # the path of the module, or of the module that contains it
    phase: str  # forward, backward or optimizer
    number: int  # its index among calls of the same name
    inputs: Mapping[str, Value] = field(default_factory=dict)
    outputs: Mapping[str, Value] = field(default_factory=dict)
    stack: tuple[str, ...] = ()
    given: tuple[Any, Any] = ([], {})  # an operator's arguments and keywords as recorded

    @property
    def title(self) -> str:
        """A readable name for the call.

        >>> Call("Aten.addmm.3.forward", "op", "addmm", "h.0.mlp", "backward", 3).title
        'addmm in h.0.mlp (backward)'
        """
        phase = "" if self.phase == "forward" else f" ({self.phase})"
        if self.kind == "op":
            return f"{self.op} in {self.path or 'the root module'}{phase}" if self.path else f"{self.op}{phase}"
        if self.kind == "gradients":
            return f"gradients of {self.path or 'the root module'} ({self.op})"
        if self.kind == "optimizer":
            return f"{self.op}.step()"
        return f"{self.path or 'the root module'} ({self.op}){phase}"


@dataclass(frozen=True)
class Dump:
    """The rows of one step of one process, in the order in which they ran."""

    file: Path
    calls: tuple[Call, ...]
    step: int | None = None
    rank: int | None = None
    source: str = "msprobe"  # or npukit, ptdbg, monitor
