"""Send the studio requests that no page of it would: is there an answer of 5xx, and is anything outside read?

python -m benchmarks studio_fuzz [--requests 2000] [--seed 0]

A canary file lies beside the workspace, and links lead to it; no answer may hold its words, and nothing may be written
outside. Every route is asked with hostile paths, types, lengths and encodings, with and without the token.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from npukit.errors import NpukitError
from npukit.studio.app import make_app
from npukit.studio.folders import Folders
from npukit.studio.options import StudioOptions
from npukit.studio.runs import Runs

CANARY = "canary-7f3a91"
PATHS = [
    "..", "../canary.txt", "/etc/passwd", "link/canary.txt", "link", "~", "~root/.ssh/id_rsa", "file:///etc/passwd",
    "\0", "a\0b", "%2e%2e/canary.txt", "..%2fcanary.txt", "....//canary.txt", "/proc/self/environ", "C:\\x", "x" * 9000,
    ".", "", "project", "project/train.py", "run", "\ud800", "\N{PILE OF POO}", "<script>", "-h", "--help", "$(id)",
    "`id`", "a;id", "a\nb", "*", "con", "project/../../canary.txt", ".npukit/studio/token", "folder:../", "folder:run",
]  # fmt: skip
VALUES: list[Any] = [None, True, False, 0, -1, 1e309, 2**70, "1e999", [], {}, [[]], {"a": {"b": []}}, [None], "\ud83d"]


def routes(options: StudioOptions) -> list[tuple[str, str]]:
    """Every route with its method, from the app itself."""
    app: Any = make_app(options)._app
    return [(route.path, method) for route in app.routes for method in sorted(route.methods or {"GET"})]


def hostile(pick: random.Random, deep: int = 0) -> Any:
    """A value for a field."""
    if deep < 3 and pick.random() < 0.15:
        return {pick.choice(FIELDS): hostile(pick, deep + 1) for _ in range(pick.randrange(4))}
    if deep < 3 and pick.random() < 0.1:
        return [hostile(pick, deep + 1) for _ in range(pick.randrange(4))]
    return pick.choice(PATHS) if pick.random() < 0.7 else pick.choice(VALUES)


FIELDS = [
    "id", "path", "name", "names", "size", "model", "data", "template", "task", "cutoff", "page", "folder", "tokens",
    "values", "device", "devices", "card", "text", "verb", "output", "style", "dropped", "command", "key", "done",
    "adapters", "now", "files", "model.path", "training.output", "data.train", "compare",
]  # fmt: skip


def body(pick: random.Random) -> bytes:
    kind = pick.random()
    if kind < 0.08:
        return pick.randbytes(pick.randrange(2000))
    if kind < 0.12:
        return b"[" * 100_000
    made = {pick.choice(FIELDS): hostile(pick) for _ in range(pick.randrange(8))}
    return json.dumps(made).encode()


def main(requests: int = 2000, seed: int = 0) -> None:
    pick = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        outside, work = Path(folder), Path(folder) / "work"
        (work / "project").mkdir(parents=True)
        (work / "project/train.py").write_text("import torch\nx = torch.ones(2).cuda()\n")
        (work / "run").mkdir()
        (work / "run/log.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
        (work / "run/npukit.yaml").write_text("model: {path: m}\n")
        (outside / "canary.txt").write_text(CANARY)
        (work / "link").symlink_to(outside)
        known = routes(StudioOptions(Folders.of([work]), token="t"))
        before = {file: file.stat().st_mtime_ns for file in outside.iterdir() if file != work}
        command = [sys.executable, "-m", "npukit", "studio", str(work), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert server.stdout and server.stderr
        address = urlsplit(server.stdout.readline().split()[-1])
        token = address.query.partition("=")[2]
        counts: collections.Counter[int] = collections.Counter()
        failures: list[str] = []
        csrf = json.loads(ask(address.netloc, "GET", "/api/session", {"Authorization": f"Bearer {token}"}, b"")[1])[
            "csrf"
        ]
        for number in range(requests):
            path, method = pick.choice(known)
            if pick.random() < 0.08:
                method = pick.choice(["PUT", "DELETE", "OPTIONS", "HEAD", "POST", "GET", "TRACE"])
            for name in ("{id}", "{name}", "{path:path}"):
                path = path.replace(name, quote(pick.choice(PATHS).encode(errors="surrogatepass")[:3000], safe="/.%"))
            query = {
                pick.choice(FIELDS): str(hostile(pick)).encode(errors="replace")[:4000]
                for _ in range(pick.randrange(4))
            }
            headers = {"Authorization": f"Bearer {token}", "X-Npukit-CSRF": csrf}
            if pick.random() < 0.15:
                headers.pop(pick.choice(list(headers)))
            if pick.random() < 0.1:
                headers["Content-Length"] = pick.choice(["-1", "x", "99999999999"])
            sent = body(pick) if method == "POST" else b""
            status, answer = ask(address.netloc, method, f"{path}?{urlencode(query)}" if query else path, headers, sent)
            counts[status] += 1
            if status >= 500 and status != 503:  # a chat whose model is not loaded
                failures.append(f"{number}: {method} {path[:80]} {status} {sent[:200]!r}")
            if CANARY.encode() in answer or b"root:x:0" in answer:
                failures.append(f"{number}: {method} {path[:80]} shows what is outside")
        alive = server.poll() is None
        server.terminate()
        for run in Runs(work / ".npukit/studio"):  # some of what was asked for was started
            with contextlib.suppress(NpukitError):
                run.signal(now=True)
        log = server.stderr.read()
        server.wait()
        after = {file: file.stat().st_mtime_ns for file in outside.iterdir() if file != work}
    print(f"{requests} requests to {len(known)} routes: {dict(sorted(counts.items()))}")
    print(f"alive at the end: {alive}; outside unchanged: {before == after}; tracebacks: {log.count('Traceback')}")
    print("\n".join(failures[:20]) or "no 5xx, nothing outside was read")
    if failures:
        print(log[-3000:])
    sys.exit(bool(failures) or not alive or before != after)


def ask(host: str, method: str, path: str, headers: dict[str, str], sent: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException, ValueError):
        return 0, b""  # refused before it was a request
    finally:
        connection.close()
