"""A baseline: the findings that a project knows of, so that only new ones are reported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from npukit.errors import NpukitError
from npukit.report import Finding
from npukit.report.writing import write_json


def _key(finding: Finding, base: Path) -> str:
    """What stays the same when lines move: the rule, the file and the line's text."""
    file = ""
    if finding.place:
        path = finding.place.file.absolute()
        file = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_posix()
    return f"{finding.code} {file} {finding.evidence.strip() or finding.what}"


def write_baseline(path: Path, findings: Iterable[Finding]) -> None:
    """Write the findings to a baseline; paths in it are relative to its folder."""
    base = path.absolute().parent
    known = Counter(_key(finding, base) for finding in findings)
    write_json(path, {"npukit-baseline": 1, "findings": dict(sorted(known.items()))})


def new_findings(path: Path, findings: Iterable[Finding]) -> list[Finding]:
    """The findings that the baseline does not hold; a line that is there twice must be in it twice."""
    try:
        known = Counter(json.loads(path.read_text(encoding="utf-8"))["findings"])
    except OSError as error:
        raise NpukitError(f"There is no baseline {path}: create it with --update-baseline.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise NpukitError(f"{path} is not an npukit baseline: write it again with --update-baseline.") from error
    base = path.absolute().parent
    new = []
    for finding in findings:
        key = _key(finding, base)
        if known[key] > 0:
            known[key] -= 1
        else:
            new.append(finding)
    return new
