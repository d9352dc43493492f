"""What the pages promise exists: their links, their anchors, the commands they show, and the generated reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npukit.cli.docs import docs
from npukit.cli.reference import pages
from npukit.cli.reference.commands import exit_codes_page
from npukit.cli.reference.facts import own_variables
from npukit.cli.verbs import VERBS
from npukit.errors import NpukitError

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
PAGES.remove(ROOT / "CHANGELOG.md")  # names pages as they were called then
VERB_NAMES = {name for group in VERBS.values() for verb in group for name in (verb.name, *verb.also)}
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
INTERNAL = re.compile(  # how npukit's processes talk to each other
    r"NPUKIT_(AUTOLOAD_LATER|CAPTURE|CONFIG|DEVICE|HOOK|LAUNCHER|ONE_LOG|PROFILE|RANK_CPUS|SERVE|SIM_\w+|TASK|VERBOSITY"
    r"|WALK\w*)"
)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _outside_code(text: str) -> str:
    return FENCED.sub("", text)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _outside_code(page.read_text(encoding="utf-8"))):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", _outside_code(target.read_text(encoding="utf-8")), re.MULTILINE)
            assert anchor in map(_anchor, headings), link


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"(?<!`)`npukit ([a-z][\w-]*)", text)
    for block in re.findall(r"```.*?```", text, flags=re.DOTALL):
        shown += re.findall(r"^\$ npukit ([a-z][\w-]*)", block, re.MULTILINE)
    assert set(shown) <= VERB_NAMES


def test_the_reference_is_current() -> None:
    folder = ROOT / "docs" / "reference"
    written = {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in folder.rglob("*.md")}
    written = {name: text for name, text in written.items() if name not in ("README.md", "README.zh.md")}
    stale = [name for name, text in pages().items() if written.get(name) != text] + list(
        written.keys() - pages().keys()
    )
    assert not stale, "run python -m npukit.cli.reference"


def test_every_variable_is_documented_or_internal() -> None:
    sources = [file for file in (ROOT / "src").rglob("*") if file.suffix in (".py", ".c", ".cpp", ".h", ".sh")]
    read = re.compile(r"""(?:environ(?:\.get)?[\[(]|getenv\(|envvar=)["'](NPUKIT_\w+)["']""")
    used = {name for file in sources for name in read.findall(file.read_text("utf-8"))}
    documented = {row["name"] for row in own_variables()}
    missing = {name for name in used - documented if not INTERNAL.fullmatch(name)}
    assert not missing, "document it in src/npukit/cli/reference/variables.yaml"


def test_every_verb_has_its_exit_codes() -> None:
    page = exit_codes_page()
    assert {verb.name for group in VERBS.values() for verb in group if f"`{verb.name}`" not in page} == set()


def test_every_verb_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    docs(None)
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {verb.page or verb.name for group in VERBS.values() for verb in group} <= set(listed)
    docs("train")
    shown = capsys.readouterr().out
    page = (ROOT / "docs" / "guides" / "fine-tune.md").read_text(encoding="utf-8").splitlines()
    assert "<!-- slow -->" in page  # a comment for the tests, which is not for readers
    assert [line for line in shown.splitlines() if line] == [line for line in page if line and line[:4] != "<!--"]
    assert "\n\n\n\n" not in shown
    with pytest.raises(NpukitError, match="no page"):
        docs("../README")


def _linked(file: Path) -> set[Path]:
    matches = re.findall(r"\]\(([^)\s#]+)", _outside_code(file.read_text(encoding="utf-8")))
    return {(file.parent / link).resolve() for link in matches if not link.startswith("http")}


def _within_two_clicks(front: Path) -> set[Path]:
    first = {file for file in _linked(front) if file.suffix == ".md"}
    return first.union(*(_linked(file) for file in first)) | {front}


def test_every_page_can_be_reached_from_the_front_page_in_two_clicks() -> None:
    wanted = {page for page in ROOT.glob("docs/**/*.md") if not re.search(r"NPK\d|\.zh$", page.stem)}
    missing = wanted - _within_two_clicks(ROOT / "README.md")
    assert {_name(page) for page in missing} == set()


QUESTIONS = {  # what a reader asks, the page that answers, and what stands in the line or block of the answer
    "How do I install on an Atlas 800T A2?": ("guides/install-npu", ("Atlas 800T A2", "pip install torch==")),
    "Is Qwen3-30B-A3B supported?": ("reference/models", ("Qwen3-30B-A3B",)),
    "What does NPUKIT_CACHE do?": ("reference/variables", ("| `NPUKIT_CACHE` |",)),
    "What does 507018 mean?": ("reference/errors", ("| `507018`",)),
    "Why does my loss differ?": ("guides/loss-differs", ("npukit precision compare",)),
    "Does LoRA on a 70B model fit?": ("guides/does-it-fit", ("70B", "--fit")),
    "How do I come from ms-swift?": ("guides/from-ms-swift", ("npukit sft",)),
    "How do I test in CI without a card?": ("guides/ci", ("pytest --npu-sim",)),
    "What is not simulated?": ("concepts/simulated-npu", ("RDMA",)),
    "How do I undo a migration?": ("guides/port-a-script", ("--undo",)),
    "How do I uninstall?": ("guides/install", ("pip uninstall npukit",)),
}


@pytest.mark.parametrize("front", ["README.md", "README.zh.md", "docs/README.md", "docs/README.zh.md"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_two_clicks(question: str, front: str) -> None:
    name, words = QUESTIONS[question]
    page = ROOT / "docs" / f"{name}{'.zh' if front.endswith('.zh.md') else ''}.md"
    assert page in _within_two_clicks(ROOT / front)
    assert [word for word in words if word not in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("folder", ["rules", "findings", "advice"])
def test_every_code_says_what_to_write_instead_and_how_to_check_it(folder: str) -> None:
    without_example = {"NPK001", "NPK002", "NPK003"}  # a broken file, a bug of npukit, other findings
    for page in (ROOT / "docs" / "reference" / folder).glob("NPK???.md"):
        text = page.read_text(encoding="utf-8")
        assert "**Check:** " in text, page.name
        assert "```" in text or page.stem in without_example, page.name


TRANSLATED = [
    ROOT / "README.md",
    ROOT / "docs" / "README.md",
    *ROOT.glob("docs/guides/*.md"),
    *ROOT.glob("docs/concepts/*.md"),
    ROOT / "docs" / "reference" / "README.md",
]


@pytest.mark.parametrize("page", sorted(page for page in TRANSLATED if not page.name.endswith(".zh.md")), ids=_name)
def test_the_chinese_page_has_the_same_headings_code_and_links(page: Path) -> None:
    english, chinese = page.read_text(encoding="utf-8"), page.with_suffix(".zh.md").read_text(encoding="utf-8")
    assert _code(chinese) == _code(english), "python scripts/update_translations.py copies the code of the English page"
    assert _levels(chinese) == _levels(english)
    assert sorted(_targets(chinese)) == sorted(_targets(english))


def _code(text: str) -> list[str]:
    return [links[0] for links in FENCED.finditer(text)]


def _levels(text: str) -> list[str]:
    return re.findall(r"^(#+) ", _outside_code(text), re.MULTILINE)


def _targets(text: str) -> list[str]:
    """What a page links to; the anchors are those of the headings, which are translated."""
    text = re.sub(r"\[(English|简体中文)\]\([^)]*\)", "", _outside_code(text))
    return [link.partition("#")[0].replace(".zh.md", ".md") for link in re.findall(r"\]\(([^)\s]+)\)", text)]


def test_pages_are_shown_in_the_language_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    docs("fine-tune")
    assert "微调" in capsys.readouterr().out


def test_the_readme_shows_every_verb() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = {verb.name for group in VERBS.values() for verb in group if f"`npukit {verb.name}`" not in readme}
    assert not missing, "add it to the table of commands in README.md and README.zh.md"


def test_every_guide_and_concept_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [*ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/concepts/*.md")]
    names = {f"{page.parent.name}/{page.name}" for page in pages if not page.name.endswith(".zh.md")}
    assert {name for name in names if f"- {name}\n" not in nav} == set()
