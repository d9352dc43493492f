"""The migration's report as a page: what it holds, and how it behaves in a browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from npukit.report import Finding, Severity
from npukit.report.migration_html import hunks, render, write_report
from npukit.source import Place


@dataclass(frozen=True)
class Change:
    path: Path
    before: str
    after: str
    fixed: tuple[Finding, ...]


@dataclass(frozen=True)
class Migration:
    root: Path
    changes: tuple[Change, ...]
    left: tuple[Finding, ...]
    files: int


ROOT = Path("/project")
LINES = "\n".join(f"line_{number} = {number}" for number in range(1, 201))


def migration(files: int = 50, changes: int = 80, left: int = 1000) -> Migration:
    """With these numbers, 5,000 findings."""
    changed = []
    for file in range(files):
        path = ROOT / f"package/module_{file}.py"
        before = LINES.replace("line_10 = 10", "x = model.cuda()  # </script><b>").replace(
            "line_100 = 100", "dist('nccl')"
        )
        after = before.replace(".cuda()", ".to(DEVICE)").replace("'nccl'", "'hccl'")
        places = [("NPK110", 10, "moves to a CUDA device")] + [("NPK120", 100, "asks for NCCL")] * (changes - 1)
        fixed = [Finding(code, Severity.error, what, "why", "", Place(path, line)) for code, line, what in places]
        changed.append(Change(path, before, after, tuple(fixed)))
    todo = [
        Finding("NPK300", Severity.warning, f"place {n}", remedy="by hand", place=Place(ROOT / "b.py", n + 1))
        for n in range(left)
    ]
    return Migration(ROOT, tuple(changed), tuple(todo), files + 1)


VERIFICATION: dict[str, Any] = {
    "same": False,
    "compared": ["3 values of loss"],
    "before": {"device": "the CPU", "exit_code": 0},
    "after": {"device": "a simulated NPU", "exit_code": 0},
    "divergence": {
        "kind": "loss",
        "name": "loss",
        "number": 2,
        "step": 2,
        "before_text": "step 2 loss 1.0",
        "after_text": "step 2 loss 1.5",
        "cause": {"kind": "result", "op": "gelu", "text": "m.py:4 (before: m.py:3): gelu gives another result"},
    },
    "cpu_fallbacks": [{"op": "aten::_linalg_eigh", "line": "m.py:9", "count": 3}],
    "not_simulated": [],
    "notes": ["The NPU was simulated."],
}


def test_hunks_pair_the_lines_that_belong_together() -> None:
    before = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
    after = ["a", "B", "c", "d", "e", "f", "g", "h", "i", "x", "j"]
    first, second = hunks(before, after)
    assert first == {"before": 1, "after": 1, "rows": ["a", ("b", "B"), "c", "d", "e"]}
    assert second == {"before": 7, "after": 7, "rows": ["g", "h", "i", (None, "x"), "j"]}


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    write_report(migration(2, 2, 2), tmp_path / "report.html", VERIFICATION)
    page = (tmp_path / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert not re.search(r"https?://|\bsrc=|<link|@import|fetch\(", page)
    assert page.count("</script>") == 2, "code in the data does not end the script that holds it"
    assert "{{" not in page


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"

# Uses the page as a person would, and leaves what it saw in an element of its own.
VISIT = """<script>
const seen = {};
const count = () => document.getElementById("count").textContent;
const names = () => [...document.querySelectorAll("summary")].map(s => s.firstChild.textContent.trim());
const choose = (name, value) => {
  filters[name].value = value;
  filters[name].dispatchEvent(new Event("input", {bubbles: true}));
};
const opened = () => new Promise(done => setTimeout(done, 60));
(async () => {
  await opened();
  seen.verification = document.getElementById("verification").innerText;
  seen.all = count();
  seen.diff = [...document.querySelector("tr:has(mark)").cells].map(cell => cell.textContent);
  seen.marks = [...document.querySelectorAll("mark")].slice(0, 2).map(mark => mark.textContent);
  seen.hunks = document.querySelector("details table").tBodies.length;
  choose("rule", "NPK110"); await opened();
  seen.rule = count();
  seen.rule_hunks = document.querySelector("details table").tBodies.length;
  choose("rule", ""); choose("file", "module_7.py"); await opened();
  seen.file = [count(), names()];
  choose("file", ""); choose("state", "left"); await opened();
  seen.left = [count(), names(), document.querySelectorAll("li").length];
  document.querySelector("button").click();
  seen.more = document.querySelectorAll("li").length;
  choose("text", "place 77"); await opened();
  seen.text = count();
  seen.elements = document.querySelectorAll("*").length;
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify(seen);
  document.body.append(told);
})();
</script>"""


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_five_thousand_findings_in_a_browser(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(migration(), VERIFICATION).replace("</body>", VISIT + "</body>"))
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000"]
    visit = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True)
    match = re.search(r'<pre id="told">(.*?)</pre>', visit.stdout, re.DOTALL)
    assert match, visit.stderr[-2000:]
    seen = json.loads(html.unescape(match[1]))
    assert "differs from step 2 on" in seen["verification"] and "gelu" in seen["verification"]
    assert "aten::_linalg_eigh" in seen["verification"]
    assert seen["all"] == "5000 of 5000 findings in 51 files"
    assert seen["diff"] == ["10", "x = model.cuda()  # </script><b>", "10", "x = model.to(DEVICE)  # </script><b>"]
    assert seen["marks"] == ["cuda(", "to(DEVICE"]
    assert (seen["hunks"], seen["rule_hunks"]) == (2, 1)
    assert seen["rule"] == "50 of 5000 findings in 50 files"
    assert seen["file"] == ["80 of 5000 findings in 1 file", ["package/module_7.py"]]
    assert seen["left"] == ["1000 of 5000 findings in 1 file", ["b.py"], 30]
    assert seen["more"] == 60
    assert seen["text"] == "11 of 5000 findings in 1 file"
    assert seen["elements"] < 5000, "what nobody opens is never drawn"
