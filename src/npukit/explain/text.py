"""Explanations as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npukit.explain.explanation import Explanation
from npukit.report.language import chinese, language, translated
from npukit.report.terminal import printable, printable_line
from npukit.report.text import labelled


def as_text(explanations: Sequence[Explanation], every: bool = False) -> str:
    """The first explanation in full and the others in one line each; with `every`, all in full.

    >>> print(as_text(explain("error code is 507015")))
    """
    explanations = [_in_users_language(explanation) for explanation in explanations]
    in_full = explanations if every else explanations[:1]
    parts = [_in_full(explanation) for explanation in in_full]
    others = explanations[len(in_full) :]
    if others:
        heading = (
            "Also seen, mostly as a consequence:"
            if any(other.kind == "consequence" for other in others)
            else "Also seen:"
        )
        parts.append(
            "\n".join([translated(heading), *(f"  {_place(other)}{other.code}: {other.meaning}" for other in others)])
        )
    return "\n\n".join(parts)


def _in_users_language(explanation: Explanation) -> Explanation:
    """The explanation in Chinese if requested and fully translated; otherwise unchanged."""
    texts = (explanation.meaning, *explanation.causes, *explanation.remedies)
    if language() == "en" or any(chinese(text) is None for text in texts):
        return explanation
    causes, remedies = (tuple(map(translated, texts)) for texts in (explanation.causes, explanation.remedies))
    return replace(explanation, meaning=translated(explanation.meaning), causes=causes, remedies=remedies)


def _in_full(explanation: Explanation) -> str:
    if explanation.strength == "nearest":
        return _lead(explanation)
    name = f" ({explanation.name})" if explanation.name else ""
    lines = [f"{explanation.code}{name}: {explanation.meaning}"]
    if explanation.line != explanation.code:
        lines.append(_shown_line(explanation))
    if explanation.kind == "consequence":
        also = "This is usually a consequence of another error: look for an earlier one on every rank."
        lines.append(f"  {translated(also)}")
    if explanation.strength == "reading":
        read = translated("npukit does not know this exact error. What follows is inferred from these words: {0}")
        lines.append("  " + read.format(_cut(printable_line(explanation.words), 80)))
    lines += _numbered("Likely because" if explanation.is_known else "May be because", explanation.causes)
    lines += _numbered("What to do", explanation.remedies)
    return "\n".join(lines)


def _lead(explanation: Explanation) -> str:
    """A lead: only the nearest known error, without causes."""
    lines = [
        translated("npukit does not know this error:"),
        _shown_line(explanation),
        "  " + labelled("Nearest known, which may be something else", ""),
        f"    {explanation.code}: {explanation.meaning}",
        *_numbered("What may help", explanation.remedies),
    ]
    return "\n".join(lines)


def _shown_line(explanation: Explanation) -> str:
    return f"  {_place(explanation)}{_cut(printable(explanation.line))}"


def _numbered(heading: str, sentences: Sequence[str]) -> list[str]:
    if len(sentences) == 1:
        return [f"  {labelled(heading, sentences[0])}"]
    return [
        f"  {labelled(heading, '').rstrip()}",
        *(f"    {number}. {sentence}" for number, sentence in enumerate(sentences, 1)),
    ]


def _place(explanation: Explanation) -> str:
    rank = f"rank {explanation.rank}" if explanation.rank is not None else ""
    file = f"{printable_line(explanation.source)}:{explanation.number}" if explanation.source else ""
    origin = ", ".join(part for part in (rank, file) if part)
    return f"{origin}: " if origin else ""


def _cut(line: str, limit: int = 240) -> str:
    return line if len(line) <= limit else line[: limit - 1] + "…"
