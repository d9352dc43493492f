"""Choose rules and files according to the command line and pyproject.toml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from npukit.errors import NpukitError
from npukit.facts.target import Target
from npukit.migrate.options import Options, project_options
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules
from npukit.source import find


@dataclass(frozen=True)
class Selection:
    """Prefixes of rule codes from the command line, and the options of the project.

    The command line wins: it can select rules that the project ignores.

    >>> [rule.code for rule in Selection(select=("NPK12",)).rules()]
    ['NPK120', 'NPK121', 'NPK123']
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)

    @classmethod
    def of(cls, path: Path, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Selection:
        """Return the selection for a project or a file."""
        if path.exists() and not path.is_file() and not path.is_dir():
            raise NpukitError(f"{path} is neither a file nor a folder: name a project folder or a source file.")
        return cls(tuple(select), tuple(ignore), project_options(path))

    def rules(self, target: Target | None = None, distributed: bool = False) -> tuple[Rule, ...]:
        """Return the chosen rules that apply to the target, by code."""
        known = [rule.code for rule in all_rules()]
        for prefix in (*self.select, *self.ignore, *self.options.select, *self.options.ignore):
            if not any(code.startswith(prefix) for code in known):
                raise NpukitError(f"No rule matches {prefix}: codes go from {known[0]} to {known[-1]}.")
        held = [rule for rule in all_rules() if not (rule.since and target and not target.has_torch(rule.since))]
        return tuple(rule for rule in held if distributed >= rule.distributes and self._chooses(rule.code))

    def _chooses(self, code: str) -> bool:
        if self.ignore and code.startswith(self.ignore):
            return False
        if self.select:
            return code.startswith(self.select)
        wanted = not self.options.select or code.startswith(self.options.select)
        return wanted and not (self.options.ignore and code.startswith(self.options.ignore))

    def files(self, path: Path) -> list[Path]:
        """Return the source files of a project without those that its options exclude."""
        return [file for file in find([path]) if not self.options.excludes(file)]
