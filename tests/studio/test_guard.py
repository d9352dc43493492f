"""Who gets in, and what nobody reaches: other hosts' pages, paths outside the folders, bodies without end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from npukit.cli.studio import FORMS, form
from npukit.studio import app as studio_app
from npukit.studio.app import make_app
from npukit.studio.folders import Folders
from npukit.studio.guard import CSRF, MAX_BODY
from npukit.studio.options import StudioOptions, kept_token

TOKEN = "t" * 43
STATIC = Path(studio_app.STATIC)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret.txt").write_text("outside")
    (work / "link").symlink_to(tmp_path)
    monkeypatch.chdir(work)
    return work


def client(folder: Path, signed_in: bool = True, **options: Any) -> TestClient:
    given = StudioOptions(Folders.of([folder]), token=TOKEN, verbs={name: form(name) for name in FORMS}, **options)
    made = TestClient(make_app(given), "http://127.0.0.1:7860", follow_redirects=False)
    if signed_in:
        assert made.get(f"/?token={TOKEN}").status_code == 303
        made.headers[CSRF] = made.get("/api/session").json()["csrf"]
    return made


def test_the_token_of_the_start_line_becomes_a_cookie(folder: Path) -> None:
    stranger = client(folder, signed_in=False)
    assert stranger.get("/").status_code == stranger.get("/api/runs").status_code == 401
    assert stranger.get("/?token=wrong").status_code == 401
    assert stranger.get("/page/studio.js").status_code == 401
    answer = stranger.get(f"/?token={TOKEN}")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie and TOKEN not in answer.headers["location"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert stranger.get("/").status_code == 200
    assert client(folder, False).get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_pages_of_other_sites_and_other_names_are_refused(folder: Path) -> None:
    mine = client(folder)
    assert mine.get("/api/runs", headers={"Host": "evil.example"}).status_code == 403
    assert mine.get("/api/runs", headers={"Origin": "http://evil.example"}).status_code == 403
    assert mine.get("/api/runs", headers={"Origin": "null"}).status_code == 403
    assert mine.get("/api/runs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert mine.get("/api/runs", headers={"Origin": "http://127.0.0.1:7860"}).status_code == 200
    assert mine.post("/api/train/check", json={"values": {}}, headers={CSRF: "wrong"}).status_code == 403
    behind = client(folder, names=("studio.example",))
    assert behind.get("/api/runs", headers={"Host": "studio.example"}).status_code == 200
    for name, allowed in (("10.0.0.5:7860", True), ("[::1]", True), ("evil.example", False)):
        answer = client(folder, host="0.0.0.0").get("/api/runs", headers={"Host": name})
        assert answer.status_code == (200 if allowed else 403), name


def test_a_policy_without_inline_scripts(folder: Path) -> None:
    answer = client(folder).get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy and "script-src 'self'" in policy and "default-src 'none'" in policy
    assert not re.search(r"<script(?! type=\"module\" src=)|\son\w+=|\sstyle=", answer.text)


OUTSIDE = ("..", "../secret.txt", "/etc/passwd", "link/secret.txt", "~root", "a\0b", "link/../secret.txt")


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_the_folders_are_refused(folder: Path, path: str) -> None:
    mine = client(folder)
    asked = [
        mine.get("/api/files", params={"path": path}),
        mine.get("/api/run", params={"id": f"folder:{path}"}),
        mine.post("/api/port/analyze", json={"path": path}),
        mine.post("/api/port/write", json={"path": ".", "output": path}),
        mine.post("/api/data/preview", json={"model": path, "data": "x.jsonl"}),
        mine.post("/api/data/preview", json={"model": "m", "data": path}),
        mine.post("/api/forms/start", json={"verb": "serve", "values": {"model": path, "device": "cpu"}}),
        mine.post("/api/forms/start", json={"verb": "serve", "values": {"model": "m", "adapter": [f"a={path}"]}}),
        mine.post("/api/forms/start", json={"verb": "eval", "values": {"model": "m", "data": [path]}}),
        mine.post("/api/forms/start", json={"verb": "export", "values": {"model": "m", "output": path}}),
        mine.post("/api/train/start", json={"device": "cpu", "values": {"training.output": path}}),
    ]
    assert {answer.status_code for answer in asked} <= {403, 422} and 403 in {answer.status_code for answer in asked}
    assert not list((folder / ".npukit/studio/runs").iterdir()), "nothing was started"
    assert all("outside" not in json.dumps(answer.json().get("entries", "")) for answer in asked)


def test_options_cannot_be_smuggled_in(folder: Path) -> None:
    mine = client(folder)
    for values in ({"model": "--trust-remote-code"}, {"model": "m", "unknown": 1}, {"model": {"a": 1}}, {"model": ""}):
        assert mine.post("/api/forms/start", json={"verb": "export", "values": values}).status_code == 422
    for values in ({"model": "--host=0.0.0.0"}, {"model": "m", "host": "0.0.0.0"}, {"model": "m", "port": 1}):
        assert mine.post("/api/forms/start", json={"verb": "serve", "values": values}).status_code == 422


def test_bodies_are_bounded(folder: Path) -> None:
    mine = client(folder)
    assert mine.post("/api/train/translate", content=b"x" * (MAX_BODY + 1)).status_code == 413
    assert mine.post("/api/train/translate", content=iter([b"x" * 2**19] * 5)).status_code == 413
    assert mine.post("/api/train/translate", content=b"[" * 200_000).status_code == 400


def test_a_studio_for_showing_starts_nothing(folder: Path) -> None:
    mine = client(folder, read_only=True)
    for path in ("train/start", "forms/start", "port/write", "port/verify", "run/delete", "run/stop"):
        assert mine.post(f"/api/{path}", json={}).status_code == 403, path
    assert mine.post("/api/train/check", json={"values": {}}).status_code == 200
    assert mine.get("/api/runs").status_code == 200


def test_what_is_deleted_is_a_run_and_nothing_else(folder: Path) -> None:
    mine = client(folder)
    run = folder / "runs" / "one"
    run.mkdir(parents=True)
    (run / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (run / "npukit.yaml").write_text("model: {path: m}\n")
    (folder / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (folder / "npukit.yaml").write_text("model: {path: m}\n")
    assert mine.post("/api/run/delete", json={"id": "folder:.", "files": True}).status_code == 422
    assert mine.post("/api/run/notes", json={"id": "folder:runs/one", "text": "good"}).status_code == 200
    assert [row["notes"] for row in mine.get("/api/runs").json()] == ["", "good"] or run.is_dir()
    assert mine.post("/api/run/delete", json={"id": "folder:runs/one", "files": True}).status_code == 200
    assert not run.exists() and folder.is_dir()


def test_an_uploaded_file_is_translated_with_notes(folder: Path) -> None:
    mine = client(folder)
    text = "model_name_or_path: m\nstage: sft\ndo_train: true\ndataset: d\nlora_rank: 4\noutput_dir: out\n"
    answer = mine.post("/api/train/translate", json={"text": text}).json()
    assert answer["dialect"] == "LLaMA-Factory" and answer["values"]["tuning.rank"] == 4 and answer["notes"]
    wrong = mine.post("/api/train/translate", json={"text": "model_name_or_path: m\nstage: sftt\n"}).json()
    assert wrong["mistakes"] and not wrong["values"]
    outside = mine.post("/api/train/translate", json={"text": text.replace("out\n", "/etc/out\n")})
    assert outside.status_code == 403


def test_messages_are_in_the_language_of_the_page(folder: Path) -> None:
    mine = client(folder)
    (folder / "train.py").write_text("import torch\n\nx = torch.ones(2).cuda()\n")
    chinese = {"Accept-Language": "zh"}
    answers = [
        mine.get("/api/machine/doctor", headers=chinese).json()["checks"][0]["findings"][0]["what"],
        mine.get("/api/forms", headers=chinese).json()["export"]["summary"],
        mine.post("/api/port/analyze", json={"path": "."}, headers=chinese).json()["findings"][0]["why"],
    ]
    assert all(re.search("[\u4e00-\u9fff]", text) for text in answers)
    assert not re.search("[\u4e00-\u9fff]", mine.get("/api/machine/doctor").text)


def test_the_token_is_kept_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    token = kept_token(tmp_path)
    assert len(token) >= 43 and kept_token(tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_every_word_is_there_in_both_languages_and_used() -> None:
    shared = STATIC.parents[1] / "web" / "static"
    texts = {name: (STATIC / f"words_{name}.js").read_text() for name in ("en", "zh")}
    known = {name: set(re.findall(r'^  "?([\w.]+)"?:', text, re.MULTILINE)) for name, text in texts.items()}
    # Options whose name reads well in English have a word in Chinese only.
    assert {key for key in known["zh"] ^ known["en"] if not key.startswith(("option_", "label_"))} == set()
    labels = {f"label_{name}" for verb in FORMS for name in form(verb)["names"]}
    assert labels <= known["zh"]
    common = set(re.findall(r"(\w+): \"", (shared / "common.js").read_text()))
    files = [file for file in STATIC.iterdir() if not file.name.startswith("words")]
    code = "".join(file.read_text() for file in files)
    used = set(re.findall(r"\bword\(\"([\w.]+)\"", code))
    assert used <= known["en"] | common
    made = re.findall(r"word\(`(\w*)\$\{\w[^}]*\}(\w*)`", code)  # from a name of the data, as in verb_train
    is_made = {key for key in known["en"] for one, other in made if key.startswith(one) and key.endswith(other)}
    assert {key for key in known["en"] - is_made if f'"{key}"' not in code} == set()
