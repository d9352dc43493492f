"""What was wrong with the data, counted, with the first places."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN = 5


@dataclass
class Problems:
    """Rows that could not be used, were cut, or count only in part."""

    rows: int = 0
    bad: int = 0
    first: list[str] = field(default_factory=list)
    cut: int = 0
    unmatched: int = 0

    def add_bad(self, sentence: str) -> None:
        self.bad += 1
        if len(self.first) < SHOWN:
            self.first.append(sentence)

    def add(self, other: Problems) -> None:
        self.rows += other.rows
        self.bad += other.bad
        self.first = (self.first + other.first)[:SHOWN]
        self.cut += other.cut
        self.unmatched += other.unmatched

    def sentences(self) -> list[str]:
        """What to tell the user; nothing where all is well."""
        said = []
        if self.bad:
            said.append(f"{self.bad:,} of {self.rows + self.bad:,} rows cannot be used and were skipped:")
            said += [f"  {place}" for place in self.first]
            if self.bad > len(self.first):
                said.append(f"  and {self.bad - len(self.first):,} more")
        if self.cut:
            said.append(f"{self.cut:,} of {self.rows:,} rows are longer than data.cutoff or pack_length and were cut.")
        if self.unmatched:
            said.append(
                f"{self.unmatched:,} answers are not trained on: the chat template rewrites them once more turns "
                "follow. A named template (data.template) trains on all answers."
            )
        return said
