"""The Agent Skill: it is valid, all that it names exists, and three tasks are done with its commands alone."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from npukit.cli.verbs import VERBS, load

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "src" / "npukit" / "skill"
COMMAND = re.compile(r"^npukit [^\n]+$|`(npukit [^`]+)`", re.MULTILINE)


def commands() -> Iterator[str]:
    """Every command that the skill's pages show."""
    for file in sorted(SKILL.rglob("*.md")):
        for match in COMMAND.finditer(file.read_text(encoding="utf-8")):
            yield match[1] or match[0]


def test_the_front_matter_is_what_agents_accept() -> None:
    text = (SKILL / "SKILL.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---")[1])
    assert set(head) <= {"name", "description", "license", "allowed-tools", "metadata", "compatibility"}
    assert head["name"] == "npukit" and len(head["description"]) <= 1024 and len(head["compatibility"]) <= 500
    assert len(text.splitlines()) < 500
    for link in re.findall(r"\]\((references/[^)]+)\)", text):
        assert (SKILL / link).is_file() or link == "references/commands.md"


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("SKILL.md", ("npukit doctor", "npukit verify", "## Before you report success")),
        ("references/training-code.md", ("torch.cuda.device_count()", '"hccl"', "torch.amp.GradScaler", "no_sync()")),
        ("references/training-code.md", ("unscale_", "use_reentrant=False", "scheduler.step()", "map_location")),
        ("references/training-code.md", ("set_epoch", "non_blocking", "synchronize()", "examples/gpt2", "Ten things")),
        ("references/errors.md", ("out of memory", "NaN", "hang", "import torch_npu")),
        ("references/speed.md", ("npukit profile",)),
    ],
)
def test_it_covers_what_other_skills_for_ascend_do(page: str, shown: tuple[str, ...]) -> None:
    text = (SKILL / page).read_text(encoding="utf-8")
    assert [words for words in shown if words not in text] == []


def test_a_place_where_it_cannot_be_installed_is_one_sentence(npukit: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = npukit("skill", "--output", tmp_path / "file" / "skills")
    assert ended.returncode == 2 and ended.stderr.startswith("npukit: ") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("wrong", ["ASCEND_VISIBLE_DEVICES", "HCCL_INTRA_ROCE_SIZE", "OneCycleLR", "torch_npu.amp"])
def test_what_other_skills_get_wrong_is_named_as_a_mistake_only(wrong: str) -> None:
    for file in SKILL.rglob("*.md"):
        text = file.read_text(encoding="utf-8")
        mistakes = re.search(r"^## Widespread mistakes.*?(?=^Check code)", text, re.DOTALL | re.MULTILINE)
        assert wrong not in (text.replace(mistakes[0], "") if mistakes else text), file.name


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_is_one_of_npukit(command: str) -> None:
    words = shlex.split(command.partition(" -- ")[0])[1:]
    known = {name: verb for group in VERBS.values() for verb in group for name in (verb.name, *verb.also)}
    assert words[0] in known, command
    verb_: Any = load(known[words[0]])
    if inner := getattr(verb_, "commands", None):
        verb_ = inner[words[1]]
    options = {option for parameter in verb_.params for option in parameter.opts}
    for word in words:
        if word.startswith("--") and not known[words[0]].settings.get("ignore_unknown_options"):
            assert word in options, f"{command}: {word}"


def test_it_is_installed_over_an_older_one_and_over_nothing_else(npukit: Any, tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    assert npukit("skill", "--output", folder).returncode == 0
    (folder / "npukit" / "references" / "old.md").write_text("from an older version")
    assert npukit("skill", "--output", folder).returncode == 0
    written = {str(file.relative_to(folder / "npukit")) for file in (folder / "npukit").rglob("*.md")}
    assert "references/commands.md" in written and "references/old.md" not in written
    assert "{version}" not in (folder / "npukit" / "SKILL.md").read_text()
    shutil.rmtree(folder / "npukit")
    (folder / "npukit").mkdir()
    (folder / "npukit" / "mine.txt").write_text("keep")
    assert npukit("skill", "--output", folder).returncode == 2
    assert (folder / "npukit" / "mine.txt").read_text() == "keep"


def test_an_error_is_explained_as_the_skill_says(npukit: Any) -> None:
    page = (SKILL / "references" / "errors.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("npukit explain") and "ERR02200" in line)
    answer = npukit(*shlex.split(line)[1:], "--json")
    assert answer.returncode == 0 and "HCCL 7" in answer.stdout
