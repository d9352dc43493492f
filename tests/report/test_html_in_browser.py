"""The HTML report in a real browser: filters work, and 5,000 findings stay usable."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from npukit.report import Finding, Severity
from npukit.report.rendering import Format, render
from npukit.report.report import Report
from npukit.source import Edit, Place

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """<script>
const seen = {};
function look(name, change) {
  const start = performance.now();
  change();
  draw();
  seen[name] = {ms: performance.now() - start, count: document.getElementById("count").textContent,
    drawn: list.querySelectorAll("details").length};
}
look("all", () => {});
look("rule", () => { filters.rule.value = "NPK103"; });
look("file", () => { filters.rule.value = ""; filters.file.value = "module7/"; });
look("errors", () => { filters.file.value = ""; filters.warning.checked = filters.note.checked = false; });
look("fixable", () => { filters.fixable.value = "migrate"; });
look("text", () => { filters.fixable.value = ""; filters.text.value = "THING 3 "; });
look("by file", () => { filters.text.value = ""; filters.view.value = "file"; });
document.title = JSON.stringify(seen);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_filters_with_many_findings(tmp_path: Path) -> None:
    severities = list(Severity)
    findings = [
        Finding(
            f"NPK{100 + number % 10}",
            severities[number % 3],
            f"thing {number % 400} is missing",
            place=Place(Path(f"src/module{number % 100}/file.py"), number % 900 + 1),
            edits=(Edit(0, 1, "x"),) if number % 2 else (),
        )
        for number in range(5000)
    ]
    page = tmp_path / "report.html"
    page.write_text(render(Report("many", "Verdict: needs work.", findings), Format.html).replace("</body>", PROBE))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    dom = subprocess.run([str(CHROMIUM), *options, page.as_uri()], capture_output=True, text=True, check=True).stdout
    title = re.search("<title>(.*?)</title>", dom)
    assert title
    seen = json.loads(title[1].replace("&quot;", '"'))
    assert {name: view["count"] for name, view in seen.items()} == {
        "all": "5000 of 5000 findings",
        "rule": "500 of 5000 findings",
        "file": "50 of 5000 findings",
        "errors": "1667 of 5000 findings",
        "fixable": "833 of 5000 findings",
        "text": "5 of 5000 findings",
        "by file": "1667 of 5000 findings",
    }
    assert seen["by file"]["drawn"] == 100, "one box a file"
    assert max(view["drawn"] for view in seen.values()) <= 100
    assert max(view["ms"] for view in seen.values()) < 1500
