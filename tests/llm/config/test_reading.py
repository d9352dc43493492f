"""Files, words and flags become one configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npukit import packages
from npukit.errors import NpukitError
from npukit.llm.config.explain import as_data, as_text
from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.config.schema import options
from npukit.llm.config.words import parse_words
from npukit.llm.reading.read import read

GOOD = (Path(__file__).parents[2] / "data" / "good.yaml").read_text()


def test_words_replace_what_the_file_says(folder: Path) -> None:
    (folder / "x.yaml").write_text(GOOD)
    words = [
        "training.epochs=5",
        "--training.max_steps",
        "7",
        "data.system=Be brief: it's #1.",
        "--data.packing",
        "false",
    ]
    config = read(Path("x.yaml"), words, {}).config
    assert (config.training.epochs, config.training.max_steps, config.training.learning_rate) == (5, 7, 1e-4)
    assert (config.data.system, config.data.packing) == ("Be brief: it's #1.", False)


def test_our_own_flags_need_no_file(folder: Path) -> None:
    config = read(None, ["--model.path", "models/tiny", "--data.train", "rows.jsonl", "rows.jsonl#1"], {}, "sft").config
    assert [source.path for source in config.data.train] == ["rows.jsonl", "rows.jsonl#1"]
    assert config.tuning.alpha is None, "our defaults, not ms-swift's"


def test_the_verb_is_the_task(folder: Path) -> None:
    (folder / "x.yaml").write_text(GOOD)
    assert read(Path("x.yaml"), [], {}, "pt").config.task == "pt"
    (folder / "x.yaml").write_text("task: sft\n" + GOOD)
    with pytest.raises(Mistakes, match=r"x.yaml:1: task is sft, but the command is npukit pt"):
        read(Path("x.yaml"), [], {}, "pt")


def test_names_of_modules_are_a_list_and_a_pattern_stays_text(folder: Path) -> None:
    words = ["model.path=models/tiny", "data.train=rows.jsonl"]
    for written, understood in {
        "q_proj": ("q_proj",),
        "q_proj, v_proj": ("q_proj", "v_proj"),
        ".*proj": ".*proj",
    }.items():
        assert read(None, [*words, f"tuning.targets={written}"], {}).config.tuning.targets == understood


def test_modelscope_by_variable_unless_the_file_says_otherwise(folder: Path) -> None:
    (folder / "x.yaml").write_text(GOOD)
    asked = {"USE_MODELSCOPE_HUB": "1"}
    assert read(Path("x.yaml"), [], asked).config.model.hub == "modelscope"
    assert read(Path("x.yaml"), ["model.hub=huggingface"], asked).config.model.hub == "huggingface"


def test_every_option_is_explained() -> None:
    known = options(Config)
    assert {"model.path", "tuning.rank", "data.train.format", "training.profile.steps"} <= set(known)
    assert all(option.meaning and option.type and option.default for option in known.values())
    assert as_text(Config, "learning_rate").startswith("training.learning_rate\n")
    assert as_data(Config, "tuning.rank")[0]["default"] == "8"


KEYS = st.sampled_from([key for key in options(Config) if key.count(".") == 1 and not key.startswith("data.train")])


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(-2, 2), st.text(max_size=5), st.just([]), st.just({})
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.text(alphabet="abdeginlrt_", min_size=1, max_size=12))
def test_whatever_is_written_is_understood_or_refused(folder: Path, chosen: dict[str, object], stray: str) -> None:
    values: dict[str, dict[str, object]] = {"model": {"path": "models/tiny"}, "data": {"train": "rows.jsonl"}}
    for key, value in chosen.items():
        section, name = key.split(".")
        values.setdefault(section, {})[name] = value
    values.setdefault("training", {})[stray] = 1
    (folder / "x.yaml").write_text(json.dumps(values))
    try:
        assert isinstance(read(Path("x.yaml"), [], {}).config, Config)
    except NpukitError as error:
        assert "x.yaml" in str(error)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,8})?", fullmatch=True), st.integers(-100, 100), max_size=4))
def test_flags_and_assignments_say_the_same(values: dict[str, int]) -> None:
    flags = parse_words([word for key, value in values.items() for word in (f"--{key}", str(value))])
    assignments = parse_words([f"{key}={value}" for key, value in values.items()])
    assert {key: value for key, (value, _) in flags.items()} == values
    assert {key: value for key, (value, _) in assignments.items()} == values


NEEDED = [
    (key, value, package)
    for key, option in options(Config).items()
    if option.needs
    for value, package in option.needs.packages.items()
]


@pytest.mark.parametrize(("key", "value", "package"), NEEDED)
def test_a_package_that_is_missing_is_named_before_anything_is_loaded(
    key: str, value: str, package: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda name: name != package)
    task = "grpo" if key.startswith("rewards") else "sft"
    words = [f"task={task}", "model.path=models/tiny", "data.train=rows.jsonl", f"{key}={value}"]
    with pytest.raises(Mistakes) as raised:
        read(None, words, {})
    assert any(f"pip install {package.replace('_', '-')}" in mistake.text for mistake in raised.value.mistakes)


def test_every_optimizer_of_another_package_says_so() -> None:
    from npukit.train.other_optimizers import MAKERS

    assert {*MAKERS} - {"muon", "muonclip", "adafactor"} == {
        value for key, value, _ in NEEDED if key == "training.optimizer"
    }
