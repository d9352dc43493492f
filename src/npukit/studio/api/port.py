"""The page Port: analysis, migration by hunks, verification, and remaining work."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from starlette.routing import Route

from npukit.errors import NpukitError
from npukit.migrate import journal
from npukit.migrate.analysis import analyze
from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import Migration, migrate
from npukit.migrate.rules import all_rules
from npukit.report.json import finding_data
from npukit.report.report import in_order, printable_finding
from npukit.report.writing import write_text
from npukit.studio.hunks import chosen, shown
from npukit.studio.studio import BadRequest, Studio, device_and_count, text

MAX_FINDINGS = 5000


def routes(studio: Studio) -> list[Route]:
    """The routes of this part."""
    return [
        studio.post("/api/port/analyze", _analyze, changes=False),
        studio.post("/api/port/migrate", _migrate, changes=False),
        studio.post("/api/port/write", _write),
        studio.post("/api/port/verify", _verify),
        studio.get("/api/port/todo", _show_todo),
        studio.post("/api/port/todo", _tick_todo),
    ]


def _project(studio: Studio, request: dict[str, Any]) -> Path:
    path = studio.folders.inside(text(request, "path"))
    if not path.exists():
        raise NpukitError(f"There is no {studio.folders.shown(path)}.")
    return path


async def _analyze(studio: Studio, request: dict[str, Any]) -> Any:
    return await studio.workers.do(analysed, _project(studio, request))


async def _migrate(studio: Studio, request: dict[str, Any]) -> Any:
    return await studio.workers.do(migrated, _project(studio, request), _style(request))


async def _write(studio: Studio, request: dict[str, Any]) -> Any:
    path, output = _project(studio, request), studio.folders.inside(text(request, "output"))
    files = await studio.workers.do(written, path, _style(request), _dropped(request), output)
    return {"files": files, "output": studio.folders.shown(output)}


def _verify(studio: Studio, request: dict[str, Any]) -> Any:
    before, after = _project(studio, request), studio.folders.inside(text(request, "output"))
    try:
        command = shlex.split(text(request, "command"))
    except ValueError as error:
        raise BadRequest(f"The command cannot be read: {error}.") from None
    if not command:
        raise BadRequest("Give the command that trains, such as python train.py --steps 20.")
    device, count = device_and_count(request, most=64)
    shown = studio.folders.shown
    words = [shown(before), shown(after), "--device", device, "--devices", str(count), "--json", "--", *command]
    return studio.start(
        "verify", words, device, count, title=before.name, has_result=True, details={"project": shown(before)}
    )


def _show_todo(studio: Studio, request: dict[str, Any]) -> Any:
    return {"done": _done(_todo_file(studio, _project(studio, request)))}


def _tick_todo(studio: Studio, request: dict[str, Any]) -> Any:
    file = _todo_file(studio, _project(studio, request))
    key, done = text(request, "key", longest=2000), set(_done(file))
    done = done | {key} if request.get("done") is True else done - {key}
    file.parent.mkdir(exist_ok=True)
    write_text(file, json.dumps(sorted(done)[-5000:]))
    return {"done": sorted(done)}


def analysed(path: Path) -> dict[str, Any]:
    """The findings of `npukit analyze`, with the name of each rule and the minutes of manual work for each."""
    analysis = analyze([path])
    rules = {rule.code: rule for rule in all_rules()}
    base = path if path.is_dir() else path.parent
    findings = []
    for finding in in_order(analysis.findings)[:MAX_FINDINGS]:
        rule = rules.get(finding.code)
        minutes = rule.effort.first if rule and not finding.fixable and finding.severity.value != "note" else 0
        name = rule.name.replace("-", " ") if rule else ""
        findings.append(finding_data(printable_finding(finding), base) | {"rule": name, "minutes": minutes})
    return {
        "verdict": analysis.verdict.value,
        "hours": analysis.hours,
        "files": analysis.files,
        "lines": analysis.lines,
        "target": str(analysis.target),
        "findings": findings,
        "left_out": max(0, len(analysis.findings) - MAX_FINDINGS),
    }


def migrated(path: Path, style: str) -> dict[str, Any]:
    """The changes of every file by hunks, and the remaining work."""
    migration = migrate(path, Goal(Style(style)))
    changes = []
    for change in migration.changes:
        fixed = [finding_data(printable_finding(finding), migration.root) for finding in change.fixed]
        name = change.path.relative_to(migration.root).as_posix()
        changes.append({"file": name, "hunks": shown(change), "findings": fixed})
    left = [finding_data(printable_finding(finding), migration.root) for finding in migration.by_hand]
    return {"changes": changes, "left": left[:MAX_FINDINGS], "files": migration.files}


def written(path: Path, style: str, dropped: dict[str, list[int]], output: Path) -> int:
    """Write a migrated copy without the dropped hunks; returns the number of changed files."""
    migration: Migration = chosen(migrate(path, Goal(Style(style))), dropped)
    journal.write_copy(migration, path, output)
    return len(migration.changes)


def _style(request: dict[str, Any]) -> str:
    style = text(request, "style", "portable")
    if style not in Style.__members__:
        raise BadRequest("style should be portable or npu.")
    return style


def _dropped(request: dict[str, Any]) -> dict[str, list[int]]:
    dropped = request.get("dropped", {})
    good = isinstance(dropped, dict) and all(
        isinstance(file, str) and isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)
        for file, numbers in dropped.items()
    )
    if not good:
        raise BadRequest("dropped should name hunks by file.")
    return dict(dropped)


def _todo_file(studio: Studio, path: Path) -> Path:
    return studio.folders.state / "todo" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"


def _done(file: Path) -> list[str]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [item for item in content if isinstance(item, str)] if isinstance(content, list) else []
