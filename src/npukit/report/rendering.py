"""The formats in which a report can be printed."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path

from npukit.report.report import Report, printable_report, translated_finding


class Format(str, Enum):
    text = "text"
    sarif = "sarif"
    html = "html"
    markdown = "markdown"
    github = "github"

    @classmethod
    def of(cls, file: Path) -> Format:
        """The format that a file's suffix asks for.

        >>> Format.of(Path("report.md"))
        <Format.markdown: 'markdown'>
        """
        return cls.markdown if file.suffix == ".md" else cls(file.suffix[1:])


def render(report: Report, format: Format, color: bool = False) -> str:
    """The report in this format, ending with a newline.

    >>> render(Report("my-project", "Nothing to do.", findings=[]), Format.markdown)
    """
    safe = printable_report(report)
    if format is not Format.sarif:  # read by programs
        safe = replace(safe, findings=[translated_finding(finding) for finding in safe.findings])
    if format is Format.sarif:
        from npukit.report.sarif import render_sarif as chosen
    elif format is Format.html:
        from npukit.report.html import render_html as chosen
    elif format is Format.markdown:
        from npukit.report.markdown import render_markdown as chosen
    elif format is Format.github:
        from npukit.report.github import render_github as chosen
    else:
        from npukit.report.text import render_text

        return render_text(safe, color)
    return chosen(safe)
