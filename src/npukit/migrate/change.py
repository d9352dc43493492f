"""What a migration does to one file."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path

from npukit.report import Finding
from npukit.report.terminal import printable_line


@dataclass(frozen=True)
class Change:
    """One file before and after, and what each edit was for."""

    path: Path
    before: str = field(repr=False)
    after: str = field(repr=False)
    encoding: str
    fixed: tuple[Finding, ...]

    def diff(self, root: Path) -> str:
        """The change as a unified diff, with paths relative to the root."""
        name = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        lines = difflib.unified_diff(
            _lines(self.before), _lines(self.after), printable_line(f"a/{name}"), printable_line(f"b/{name}")
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines with their ends, as patch counts them; Python's splitlines ends one at a form feed as well."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
