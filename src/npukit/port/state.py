"""The completed steps of a port, so that an interrupted port can continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from npukit.report.writing import write_json

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class PortStep:
    """One step of a port and its outcome."""

    name: str
    outcome: Outcome
    says: str
    details: tuple[str, ...] = ()


@dataclass
class PortState:
    """The port of one commit, stored in a file."""

    file: Path
    base: str  # the commit that is ported
    branch: str
    style: str
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name: a key and the step

    @classmethod
    def read(cls, file: Path) -> PortState | None:
        """Read a state from a file; None if there is none or it cannot be read."""
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            return cls(file, data["base"], data["branch"], data["style"], data["steps"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def done(self, name: str, key: str) -> PortStep | None:
        """The result of a step that was completed with exactly this key."""
        kept = self.steps.get(name)
        if not kept or kept["key"] != key:
            return None
        return PortStep(**{**kept["step"], "details": tuple(kept["step"]["details"])})

    def keep(self, key: str, step: PortStep) -> PortStep:
        self.steps[step.name] = {"key": key, "step": asdict(step)}
        self.write()
        return step

    def write(self) -> None:
        write_json(self.file, {name: value for name, value in self.__dict__.items() if name != "file"})

    def once(self, name: str, key: str, work: Callable[[], PortStep]) -> PortStep:
        """The result of a step, which runs unless it has already succeeded.

        >>> state.once("tests", head, lambda: PortStep("tests", "passed", "12 passed"))
        """
        kept = self.done(name, key)
        return kept if kept and kept.outcome != "failed" else self.keep(key, work())
