"""Static files of pages, and the headers that allow a page to talk to its own server and to nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.responses import FileResponse, Response

SHARED = Path(__file__).parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; "
)
HEADERS = {
    "Content-Security-Policy": f"{POLICY}frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def asset(name: str, folders: Sequence[Path]) -> Response | None:
    """The file of this name in the first folder that has it; None where none does.

    >>> asset("base.css", [SHARED]).media_type
    'text/css'
    """
    for folder in folders:
        known = {file.name: file for file in folder.iterdir() if file.suffix in KINDS}
        if name in known:
            return FileResponse(known[name], media_type=KINDS[known[name].suffix], headers=HEADERS)
    return None
