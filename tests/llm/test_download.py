"""The hub's own library downloads from a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from npukit.errors import NpukitError
from npukit.llm.models.folder import find_model
from npukit.report import progress

COMMIT = "a" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 300_000,
    "pytorch_model.bin": b"p" * 300_000,
    "original/consolidated.00.pth": b"c",
}


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as downloads use; `asked` notes the files that were fetched."""

    asked: ClassVar[set[str]] = set()

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/owner/name/resolve/"):
            name = path.split("/", 5)[5]
            if self.command == "GET":
                self.asked.add(name)
            self._send(FILES[name], {"ETag": f'"{_digest(FILES[name])}"', "X-Repo-Commit": COMMIT})
        elif path.startswith("/api/models/owner/name/tree/"):
            self._send(
                [
                    {"type": "file", "path": name, "size": len(text), "oid": _digest(text)}
                    for name, text in FILES.items()
                ]
            )
        elif path.startswith("/api/models/owner/name"):
            siblings = [{"rfilename": name, "size": len(text)} for name, text in FILES.items()]
            self._send({"id": "owner/name", "sha": COMMIT, "siblings": siblings})
        else:
            self._send({"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}, 404)

    def _send(self, content: object, headers: dict[str, str] | None = None, status: int = 200) -> None:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


def _digest(text: bytes) -> str:
    return hashlib.sha1(text).hexdigest()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def hub(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    files = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    _Hub.asked.clear()
    return _Hub.asked


def test_a_model_is_downloaded_once_without_what_is_not_needed(hub: set[str]) -> None:
    folder = find_model("owner/name", weights=False)
    assert hub == {"config.json", "tokenizer.json"}
    assert find_model("owner/name") == folder
    assert hub == {"config.json", "tokenizer.json", "model.safetensors"}, "no pickles where there are safetensors"
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_it_shows_how_far_it_is(
    hub: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[tuple[int, int]] = []
    monkeypatch.setattr("npukit.llm.download.LOOKS", 0.001)
    monkeypatch.setattr(progress, "lines", lambda *_: lambda done, total: shown.append((done, total)))
    find_model("owner/name")
    wanted = sum(len(FILES[name]) for name in hub)
    assert shown and all(0 <= done <= total == wanted for done, total in shown)
    assert capsys.readouterr() == ("", ""), "the library is silent"


def test_a_name_that_no_hub_knows_is_one_sentence(hub: set[str]) -> None:
    with pytest.raises(NpukitError, match="owner/none"):
        find_model("owner/none")
