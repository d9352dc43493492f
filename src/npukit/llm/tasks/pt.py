"""Pre-training: the loss of all tokens of plain text."""

from __future__ import annotations

from typing import Any, ClassVar

from npukit.llm.config.options import DataOptions
from npukit.llm.data.layout import lay_out
from npukit.llm.data.row import Layout, Row, TextRow, string
from npukit.llm.tasks.sft import SFT


class PT(SFT):
    """The mean loss of all tokens."""

    name = "pt"
    summary = "pre-training on plain text (pt)"
    verb = "pt"
    uses: ClassVar[frozenset[str]] = frozenset({"tokens"})
    counts_everything = True

    def uses_template(self, data: DataOptions) -> bool:
        return False

    def tokens_depend_on(self, data: DataOptions) -> Any:
        return [data.packing, data.template] if data.tokens == "llama_factory" else None

    def check_layout(self, layout: Layout, table: str) -> None:
        """Accept any layout, because any row can be read as text."""

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        """Parse a row. An alpaca row without an output is its instruction, as in c4 of dataset_info.json."""
        if layout.format == "alpaca" and "instruction" in row and not row.get("output"):
            return TextRow(string(row, "instruction"))
        return lay_out(row, layout, answer_is_text=True)


TASKS = (PT(),)
