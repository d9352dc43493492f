"""The page Runs: all runs of a workspace with their curves, logs and configurations; stop, resume, delete."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, Response
from starlette.routing import Route

from npukit.errors import NpukitError
from npukit.explain import Search
from npukit.report.writing import write_text
from npukit.studio.curves import between
from npukit.studio.entries import NOTES, Entry, configuration, entries, entry, notes
from npukit.studio.find import ANSWERS, LOG, SUMMARY
from npukit.studio.queue import log_files
from npukit.studio.runs import LIVE, State
from npukit.studio.studio import BadRequest, Studio, number, text
from npukit.studio.wrapper import RESULT, read
from npukit.web.assets import HEADERS

TAIL = 1 << 16  # bytes of a log that are shown
ANSWERS_TAIL, STEPS = 1 << 19, 6  # bytes of answers that are read, and steps that are shown
SEARCHED = 4 << 20  # bytes of a log that are searched for errors
# A report of npukit contains scripts: it is shown without the studio's origin and without network access.
REPORT = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
)


def routes(studio: Studio) -> list[Route]:
    """The routes of this part."""
    return [
        studio.get("/api/runs", _list_runs),
        studio.get("/api/run", _show_run),
        studio.get("/api/run/curves", _curves),
        studio.get("/api/run/answers", _answers),
        studio.get("/api/run/log", _log),
        studio.get("/api/run/result", _result),
        studio.get("/api/run/report", _report),
        studio.get("/api/run/explain", _explain),
        studio.post("/api/run/stop", _stop),
        studio.post("/api/run/resume", _resume),
        studio.post("/api/run/delete", _delete),
        studio.post("/api/run/notes", _write_notes),
    ]


def _list_runs(studio: Studio, _: dict[str, Any]) -> Any:
    return [entry.row(studio) for entry in entries(studio)]


def _show_run(studio: Studio, request: dict[str, Any]) -> Any:
    listed = entry(studio, text(request, "id"))
    run = listed.run
    return listed.row(studio) | {
        "configuration": configuration(listed.folder, run) if listed.folder else {},
        "logs": list(log_files(run)) if run else [],
        "exit": asdict(run.exit) if run and run.exit else None,
        "summary": _summary(listed),
        "details": run.record.details if run else {},
        "notes": notes(listed.folder) if listed.folder else "",
        "checkpoints": _checkpoints(studio, listed),
        "has_answers": bool(listed.folder and (listed.folder / ANSWERS).is_file()),
        "has_page": bool(run and (run.folder / "report.html").is_file()),
    }


def _curves(studio: Studio, request: dict[str, Any]) -> Any:
    listed = entry(studio, text(request, "id"))
    if listed.folder is None:  # it is no training
        return {"curves": {}, "last": {}}
    figures = studio.logs.figures(listed.folder / LOG)
    shown = figures
    if "first" in request:
        shown = between(listed.folder / LOG, number(request, "first", 0), number(request, "last", 0))
    evaluated = figures.curves.get("eval_loss")
    last = figures.last | ({"eval_loss": evaluated.last[1]} if evaluated and evaluated.last else {})
    return {"curves": {name: curve.pairs() for name, curve in shown.curves.items()}, "last": last}


def _answers(studio: Studio, request: dict[str, Any]) -> Any:
    listed = entry(studio, text(request, "id"))
    last = _last_answers(listed.folder / ANSWERS) if listed.folder else []
    steps = sorted({answer["step"] for answer in last})[-STEPS:]
    return {"steps": steps, "answers": [answer for answer in last if answer["step"] in steps]}


def _log(studio: Studio, request: dict[str, Any]) -> Any:
    listed = entry(studio, text(request, "id"))
    files = log_files(listed.run) if listed.run else {}
    name = text(request, "name", "output")
    if name not in files:
        raise BadRequest("There is no such log.")
    return {"text": _tail(files[name], number(request, "size", TAIL, 1, 1 << 20)), "logs": list(files)}


def _result(studio: Studio, request: dict[str, Any]) -> Any:
    run = studio.runs.find(text(request, "id"))
    printed = _tail(run.folder / RESULT, 8 << 20)
    try:
        result = json.loads(printed)
        return {"data": result["result"], "text": (result.get("error") or {}).get("message", "")}
    except (ValueError, RecursionError, KeyError, TypeError):
        return {"data": None, "text": printed}


def _report(studio: Studio, request: dict[str, Any]) -> Response:
    run = studio.runs.find(text(request, "id"))
    file = run.folder / "report.html"
    if not file.is_file():
        raise NpukitError("There is no page yet.")
    headers = HEADERS | {"Content-Security-Policy": f"{REPORT}frame-ancestors 'self'"}
    return FileResponse(file, media_type="text/html", headers=headers)


def _explain(studio: Studio, request: dict[str, Any]) -> Any:
    run = studio.runs.find(text(request, "id"))
    search = Search()
    for name, file in log_files(run).items():
        if file.is_file():
            with file.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - SEARCHED))
                search.read(name, log)
    explanations = [explanation for explanation in search.explanations if explanation.strength != "nearest"]
    return {"explanations": explanations[:4], "line": search.first_error_line}


def _stop(studio: Studio, request: dict[str, Any]) -> Any:
    studio.runs.find(text(request, "id")).signal(now=request.get("now") is True)
    return {"ok": True}


def _resume(studio: Studio, request: dict[str, Any]) -> Any:
    studio.runs.find(text(request, "id")).again()
    studio.queue.tick()
    return {"ok": True}


def _delete(studio: Studio, request: dict[str, Any]) -> Any:
    listed = entry(studio, text(request, "id"))
    if listed.state in LIVE:
        raise NpukitError("This run has not ended yet: stop it first.")
    if request.get("files") is True and listed.folder and listed.folder.is_dir():
        _check_run_folder(studio, listed)
        shutil.rmtree(listed.folder)
    if listed.run:
        listed.run.delete()
    studio.finder.contents(fresh=True)
    return {"ok": True}


def _write_notes(studio: Studio, request: dict[str, Any]) -> Any:
    listed = entry(studio, text(request, "id"))
    if not listed.folder or not listed.folder.is_dir():
        raise NpukitError("Notes can be added once the training has started.")
    write_text(listed.folder / NOTES, text(request, "text", longest=20_000))
    return {"ok": True}


def _check_run_folder(studio: Studio, listed: Entry) -> None:
    """Only a training's own folder is deleted, never one that contains other runs."""
    folder = listed.folder
    assert folder is not None
    mine = any(root.is_relative_to(folder) for root in studio.folders.roots)
    others = [run for run in studio.finder.contents(fresh=True).runs if run != folder and run.is_relative_to(folder)]
    if mine or others or not (folder / LOG).is_file() or folder.is_symlink():
        raise NpukitError(f"{studio.folders.shown(folder)} holds more than this run: delete it by hand.")


def _summary(listed: Entry) -> Any:
    if listed.folder is None or listed.state in (State.running, State.queued):
        return None
    return read(listed.folder / SUMMARY)


def _checkpoints(studio: Studio, listed: Entry) -> list[str]:
    if listed.folder is None:
        return []
    folders = [folder for folder in listed.folder.glob("checkpoint-*") if folder.is_dir()]
    latest = sorted(folders, key=lambda folder: folder.stat().st_mtime)[-100:]
    return [studio.folders.shown(folder) for folder in latest]


def _last_answers(file: Path) -> list[dict[str, Any]]:
    """The last stored answers, without a first line that was cut off and lines that are no answers."""
    answers = []
    for line in _tail(file, ANSWERS_TAIL).splitlines():
        try:
            answer = json.loads(line)
            whole = isinstance(answer["step"], int) and isinstance(answer["rewards"], dict)
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
        if whole and isinstance(answer.get("messages"), list):
            answers.append(answer)
    return answers


def _tail(file: Path, size: int) -> str:
    try:
        with file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - size))
            return log.read(size).decode(errors="replace")
    except OSError:
        return ""
