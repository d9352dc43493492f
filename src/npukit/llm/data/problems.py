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
    unanswered: int = 0  # rows of which no token counts

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
        self.unanswered += other.unanswered

    def sentences(self, longest: int) -> list[str]:
        """What to warn the user of; nothing where all is well. `longest` is how many tokens a row may have."""
        sentences = []
        if self.bad:
            sentences.append(f"{self.bad:,} of {self.rows + self.bad:,} rows cannot be used and were skipped:")
            sentences += [f"  {place}" for place in self.first]
            if self.bad > len(self.first):
                sentences.append(f"  and {self.bad - len(self.first):,} more")
        if self.cut:
            sentences.append(f"{self.cut:,} of {self.rows:,} rows are longer than {longest:,} tokens and were cut.")
        if self.unanswered:
            sentences.append(f"{self.unanswered:,} of {self.rows:,} rows have no answer left to learn from.")
        if self.unmatched:
            sentences.append(
                f"{self.unmatched:,} answers are not trained on: the chat template rewrites them once more turns "
                "follow. A named template (data.template) trains on all answers."
            )
        return sentences
