"""A project that tries to steer the terminal, the browser or the CI of whoever looks at it."""

from __future__ import annotations

import html.parser
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from markdown_it import MarkdownIt  # of rich's

from npukit.report.markdown import cell, code, escaped, fence

SOURCE = (
    "import torch\n"
    "model.cuda()  # \x1b[2J\x1b]0;owned\x07 \u202e reversed\n"
    "import apex  # <script>alert(1)</script> | ``` ::error::injected\n"
    "page = '\x0c'\n"
)
NAMES = [
    b"caf\xe9.py",
    b"\x1b[31mred.py",
    "rtl\u202eyp.py".encode(),
    b"<img src=x onerror=alert(1)>.py",
    b"two\nlines.py",
    b"::error::x.py",
]
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in NAMES:
        Path(os.fsdecode(bytes(folder) + b"/" + name)).write_text(SOURCE)
    return folder


@pytest.mark.parametrize("options", [[], ["--format", "github"], ["--json"]])
def test_nothing_printed_steers_a_terminal(npukit: Any, project: Path, options: list[str]) -> None:
    printed = npukit("analyze", "project", *options, cwd=project.parent).stdout
    assert r"caf\xe9.py" in printed.replace(r"\\", "\\") and not UNSAFE.search(printed)


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.json", "report.sarif"])
def test_no_format_of_a_report_holds_what_steers_a_viewer(npukit: Any, project: Path, name: str) -> None:
    npukit("analyze", "project", "--report", name, cwd=project.parent)
    written = (project.parent / name).read_text(encoding="utf-8")
    assert not UNSAFE.search(written)
    assert r"caf\xe9.py" in written.replace(r"\\", "\\") or name.endswith(".sarif")


def test_sarif_names_the_files_themselves(npukit: Any, project: Path) -> None:
    npukit("analyze", "project", "--report", "a.sarif", cwd=project.parent)
    results = json.loads((project.parent / "a.sarif").read_text())["runs"][0]["results"]
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
    assert {unquote_to_bytes(uri).removeprefix(b"project/") for uri in uris} == set(NAMES)


def test_github_annotations_cannot_be_added_to(npukit: Any, project: Path) -> None:
    lines = npukit("analyze", "project", "--format", "github", cwd=project.parent).stdout.splitlines()
    assert all(re.match(r"::(error|warning|notice) file=project/", line) for line in lines[:-1])


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.json"])
def test_a_report_of_a_migration_is_as_safe(npukit: Any, project: Path, name: str) -> None:
    npukit("migrate", "project", "--report", name, cwd=project.parent)
    written = (project.parent / name).read_text(encoding="utf-8")
    assert not UNSAFE.search(written)
    if name == "report.html":
        assert "<img" not in written and "<script>alert" not in written


def test_a_diff_for_a_program_is_exact(npukit: Any, project: Path) -> None:
    (project / "plain.py").write_text(SOURCE)
    diff = npukit("migrate", "project/plain.py", "--diff", cwd=project.parent).stdout
    subprocess.run(["patch", "-p1", "-d", str(project)], input=diff, text=True, check=True, capture_output=True)
    assert (project / "plain.py").read_text() != SOURCE
    assert "\x1b[2J" in (project / "plain.py").read_text()


def test_a_repository_s_own_configuration_runs_nothing(npukit: Any, project: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(project), *identity, *arguments], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    git("config", "core.fsmonitor", "touch ../ran; true")
    git("config", "filter.x.clean", "touch ../ran; cat")
    (project / ".git/info/attributes").write_text("*.py filter=x\n")
    (project / ".gitattributes").write_text("*.py filter=x\n")
    for file in project.glob("*.py"):
        file.touch()
    npukit("migrate", "project", "--in-place", cwd=project.parent)
    assert not (project.parent / "ran").exists()


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x>",
        "a `<b>` c",
        r"\`<b>\`",
        "`` <b> `",
        "`<b>``",
        "[x](javascript:alert(1))",
        "![x](http://tracker)",
        "&lt;b&gt;",
        "*a* _b_ __init__.py snake_case",
        "a | `b | c`",
    ],
)
def test_markdown_shows_text_as_it_is(text: str) -> None:
    render = MarkdownIt("commonmark").enable("table").render
    page = _Tags()
    page.feed(render(escaped(text)))
    assert set(page.found) <= {"p", "code"}
    page = _Tags()
    page.feed(render(f"| a |\n|---|\n| {cell(text)} |\n"))
    assert page.found.count("td") == 1 and set(page.found) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    page = _Tags()
    page.feed(render(code(text)))
    assert set(page.found) <= {"p", "code"}


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert fence("a ```` b") == "`````"
    assert fence("a") == "```"
