"""What a run computed, as the readers give it and `compare` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUCKETS = 16  # numbers in a sketch


@dataclass(frozen=True)
class Value:
    """A tensor or a scalar that went into a call or came out of it."""

    dtype: str = ""  # without "torch."; empty for what is no tensor
    shape: tuple[int, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    norm: float | None = None
    nan: int | None = None  # how many; None where the dump does not say
    inf: int | None = None
    hash: str = ""
    sketch: tuple[float, ...] = ()
    maker: str = ""  # the row that made it, where that is known
    requires_grad: bool | None = None  # None where the dump does not say
    file: Path | None = None  # the tensor itself
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

    name: str  # as the dump has it
    kind: str  # module, op, gradients, optimizer
    op: str  # the operator, or the class of the module
    path: str  # of the module that it is, or belongs to
    phase: str  # forward, backward, optimizer
    number: int  # among the calls of the same name
    inputs: Mapping[str, Value] = field(default_factory=dict)
    outputs: Mapping[str, Value] = field(default_factory=dict)
    stack: tuple[str, ...] = ()
    given: tuple[Any, Any] = ([], {})  # arguments and keywords as the dump has them, of operators

    @property
    def title(self) -> str:
        """The call in a person's words.

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
