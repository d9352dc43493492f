"""Count problems with the data, and keep the first places."""

from __future__ import annotations

from dataclasses import dataclass, field

from npukit.report.report import counted

SHOWN = 5


@dataclass
class Problems:
    """Rows that could not be used, were truncated, or count only in part."""

    rows: int = 0
    bad: int = 0
    first: list[str] = field(default_factory=list)
    cut: int = 0
    unmatched: int = 0
    unanswered: int = 0  # rows without a token that counts

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
        """Warnings for the user; empty if there are none. `longest` is the maximum number of tokens of a row."""
        sentences = []
        if self.bad:
            sentences.append(f"Skipped {self.bad:,} of {counted(self.rows + self.bad, 'row')} that cannot be used:")
            sentences += [f"  {place}" for place in self.first]
            if self.bad > len(self.first):
                sentences.append(f"  and {self.bad - len(self.first):,} more")
        if self.cut:
            sentences.append(f"Cut {self.cut:,} of {counted(self.rows, 'row')} to {counted(longest, 'token')}.")
        if self.unanswered:
            sentences.append(f"No answer is left to learn from in {self.unanswered:,} of {counted(self.rows, 'row')}.")
        if self.unmatched:
            sentences.append(
                f"Not trained on: {counted(self.unmatched, 'answer')} that the chat template rewrites once more turns "
                "follow. A named template (data.template) trains on all answers."
            )
        return sentences
