"""One report, five forms: each holds what a person or a program needs to act on a finding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from npukit.report import Finding, Severity
from npukit.report.json import as_data, to_json
from npukit.report.rendering import Format, render
from npukit.report.report import Report, groups
from npukit.report.text import render_text
from npukit.source import Edit, Place

FINDINGS = [
    Finding(
        "NPK301",
        Severity.error,
        "a | b </script> has no kernel",
        "why",
        "do this",
        Place(Path("a.py"), 3, 5, 3, 9),
        "x()",
    ),
    Finding(
        "NPK708", Severity.warning, ".item() in every step", "w", "r", Place(Path("b.ipynb"), 2, 1, cell=4), "l.item()"
    ),
    Finding("NPK110", Severity.error, "x.cuda()", place=Place(Path("a.py"), 9), edits=(Edit(0, 1, "y"),)),
]
REPORT = Report("project", "Verdict: needs work.", FINDINGS, {"target": "910B3"}, {"NPK110": "move-to-device"})


def test_json_holds_every_finding_with_its_place() -> None:
    data = json.loads(to_json(as_data(REPORT)))
    assert data["verdict"] == "Verdict: needs work."
    assert [
        (finding["code"], finding["file"], finding["line"], finding["fixable"]) for finding in data["findings"]
    ] == [
        ("NPK301", "a.py", 3, False),
        ("NPK110", "a.py", 9, True),
        ("NPK708", "b.ipynb", 2, False),
    ]
    assert data["findings"][2]["cell"] == 4


def test_sarif_results_point_at_rules_and_places() -> None:
    run = json.loads(render(REPORT, Format.sarif))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] >= 1


# The objects of SARIF 2.1.0 that we write: the properties they must have, and those they may have.
_SARIF: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"columnKind", "results", "properties"}),
    "tool": ({"driver"}, set()),
    "driver": ({"name"}, {"version", "rules", "informationUri"}),
    "rule": ({"id"}, {"name", "shortDescription", "help", "helpUri", "defaultConfiguration"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "partialFingerprints", "properties"}),
    "location": (set(), {"physicalLocation"}),
    "physicalLocation": ({"artifactLocation"}, {"region"}),
    "artifactLocation": (set(), {"uri"}),
    "region": (set(), {"startLine", "startColumn", "endLine", "endColumn"}),
}


def test_sarif_has_the_structure_of_its_schema() -> None:
    def check(kind: str, value: dict[str, Any]) -> dict[str, Any]:
        must, may = _SARIF[kind]
        assert must <= value.keys() <= must | may, (kind, value)
        return value

    log = check("log", json.loads(render(REPORT, Format.sarif)))
    assert log["version"] == "2.1.0"
    run = check("run", log["runs"][0])
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = check("driver", check("tool", run["tool"])["driver"])
    ids = [check("rule", rule)["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        assert all(isinstance(rule[key]["text"], str) for key in ("shortDescription", "help"))
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    assert run["results"]
    for result in (check("result", result) for result in run["results"]):
        assert result["message"]["text"] and result["level"] in ("none", "note", "warning", "error")
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert all(isinstance(fingerprint, str) for fingerprint in result["partialFingerprints"].values())
        for location in result["locations"]:
            place = check("physicalLocation", check("location", location)["physicalLocation"])
            assert re.fullmatch(r"[\w:/.%~-]+", check("artifactLocation", place["artifactLocation"])["uri"])
            region = check("region", place["region"])
            assert all(isinstance(number, int) and number >= 1 for number in region.values())
            assert region.get("endLine", region["startLine"]) >= region["startLine"]


def test_sarif_fingerprints_survive_moved_lines() -> None:
    def prints(line: int) -> list[str]:
        same = [
            Finding("NPK301", Severity.error, "w", place=Place(Path("a.py"), line + i), evidence="x()") for i in (0, 1)
        ]
        results = json.loads(render(Report("p", "v", same), Format.sarif))["runs"][0]["results"]
        return [result["partialFingerprints"]["npukit/v1"] for result in results]

    assert prints(3) == prints(30)
    assert len(set(prints(3))) == 2


def test_sarif_places_are_addresses() -> None:
    odd = [Finding("NPK301", Severity.note, "w", place=Place(Path(name))) for name in ("a b.py", "/x/ü.py")]
    results = json.loads(render(Report("p", "v", odd), Format.sarif))["runs"][0]["results"]
    places = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
    assert places == {"a%20b.py", "file:///x/%C3%BC.py"}


def test_github_annotations_escape_what_would_end_them() -> None:
    odd = Finding("NPK301", Severity.note, "50% of\nlines", place=Place(Path("a,b:c.py"), 2))
    line = render(Report("p", "v", [odd]), Format.github).splitlines()[0]
    assert line == "::notice file=a%2Cb%3Ac.py,line=2,col=1,title=NPK301::50%25 of%0Alines."


def test_markdown_tables_keep_their_columns() -> None:
    rows = [line for line in render(REPORT, Format.markdown).splitlines() if line.startswith("| error")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)


def test_html_is_one_file_that_holds_its_data() -> None:
    page = render(REPORT, Format.html)
    assert page.count("</script>") == 2, "a finding's text must not end the script that holds it"
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert data and len(json.loads(data[1])["findings"]) == 3
    assert not re.search(r'(?:src|href)="', page), "nothing is loaded from elsewhere"
    assert "{{" not in page


def test_text_tells_once_what_many_places_have_in_common() -> None:
    many = [Finding("NPK1", Severity.note, "same", "because", place=Place(Path(f"f{n}.py"), n)) for n in range(1, 41)]
    text = render_text(Report("p", "v", many), width=100)
    assert text.count("because") == 1
    assert "… and 34 more in 34 files" in text
    assert len(groups(many)) == 1


def test_text_stays_in_its_width_and_sums_up_what_migrate_does() -> None:
    text = render_text(REPORT, width=80)
    assert max(map(len, text.splitlines())) <= 96
    assert "`npukit migrate` changes 1 place in 1 file:\n      1 x NPK110  move-to-device" in text
    assert "\nVerdict: needs work.\n" in text and "npukit explain NPK" in text.splitlines()[-1]


@pytest.mark.parametrize("format", list(Format))
def test_no_findings_is_a_report_too(format: Format) -> None:
    assert "fine" in render(Report("empty", "fine", []), format)
