"""One word for one thing in every verb, and help that a person can use: examples, subjects, no names of types."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from npukit.cli.help import parted, shown_names
from npukit.cli.verbs import VERBS, load
from npukit.facts.cards import card
from npukit.facts.target import Target

# What a thing is called, and what it is not called.
WORDS = {
    "--json": ("--as-json", "--format-json", "--machine"),
    "--report": ("--html", "--page", "--markdown", "--sarif", "--write"),
    "--output": ("--out", "--output-dir", "--output-file", "--folder", "--file", "--to", "--dest", "--save"),
    "--format": ("--as", "--style-of-output", "--output-format"),
    "--device": ("--sim", "--npu", "--on", "--backend"),
    "--devices": ("--nproc", "--gpus", "--npus", "--num-devices", "--world-size", "--cards"),
    "--visible-devices": ("--device-ids", "--numbers"),
    "--nnodes": ("--nodes", "--machines", "--num-nodes"),
    "--card": ("--soc", "--chip", "--npu-name"),
    "--gpu-memory-utilization": ("--memory", "--memory-share", "--memory-fraction"),
    "--max-memory": ("--memory-limit", "--memory-gib", "--gib"),
    "--test": ("--tests", "--test-command", "--pytest"),
    "--check": ("--fail", "--strict", "--exit-code"),
    "--steps": ("--step", "--from-step", "--iterations"),
    "--max-steps": ("--num-steps", "--count"),
    "--level": ("--detail", "--depth"),
    "--profiler-level": ("--profile-level",),
    "--trace-ops": ("--trace", "--ops"),
    "--seed": ("--random-seed",),
    "--force": ("--overwrite", "--yes", "--replace", "--exist-ok"),
    "--dry-run": ("--plan", "--show", "--print-only", "--simulate"),
    "--quiet": ("--silent",),
    "--verbose": ("--debug", "--log-level"),
    "--served-model-name": ("--name",),
}
REFUSED = {other: word for word, others in WORDS.items() for other in others}
# What the users of another tool type; nothing else has a second name.
OF_PEERS = {
    "--nproc-per-node", "--nproc_per_node", "--node_rank", "--max_restarts", "--log_dir", "--rdzv-endpoint",
    "--rdzv_endpoint", "--master_addr", "--master_port",  # torchrun
    "--template",  # LLaMA-Factory and ms-swift
    "--max-tokens",  # vLLM and OpenAI
}  # fmt: skip
# What these name is each verb's own, and its help says it.
OWN_HELP = {"--data", "--output", "--report", "--format", "--test", "--device", "--dtype", "--dry-run", "--trace-ops"}


def every_command() -> Iterator[tuple[str, Any]]:
    for verb in (verb for group in VERBS.values() for verb in group):
        command = load(verb)
        for name, inner in (getattr(command, "commands", None) or {"": command}).items():
            yield f"{verb.name} {name}".strip(), inner


COMMANDS = dict(every_command())


def options(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option" and not param.hidden]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_is_called_what_it_is_called_everywhere(name: str) -> None:
    for option in options(COMMANDS[name]):
        long = [name_ for name_ in option.opts if name_.startswith("--")]
        assert re.fullmatch(r"--[a-z0-9]+(-[a-z0-9]+)*", long[0]), long[0]
        assert long[0] not in REFUSED, f"{name} {long[0]}: elsewhere this is {REFUSED[long[0]]}"
        assert set(long[1:]) <= OF_PEERS, f"{name}: {long} has two names"
        assert option.help, f"{name} {long[0]} has no help"


def test_an_option_means_the_same_in_every_verb() -> None:
    helps: dict[str, set[str]] = defaultdict(set)
    for command in COMMANDS.values():
        for option in options(command):
            helps[shown_names(option)[-1 - bool(option.secondary_opts)]].add(option.help or "")
    assert {name: texts for name, texts in helps.items() if len(texts) > 1 and name not in OWN_HELP} == {}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_and_no_types(name: str) -> None:
    command = COMMANDS[name]
    text = command.get_help(typer.Context(command, info_name=f"npukit {name}"))
    assert not re.search(r"<\w|\[x|\bx[<>]=?\d|list\[|\{\w+\}", text)
    assert "\nExamples:\n" in text and "\nCommon options:\n  -q, --quiet" in text
    assert all(
        not name_.startswith("--") or name_ in text for option in options(command) for name_ in shown_names(option)
    )
    examples = [example for example, _ in parted(command.help)[1]]
    assert 2 <= len(examples) <= 3 and any(f"npukit {name.partition(' ')[0]}" in example for example in examples)


EXAMPLES = [example for command in COMMANDS.values() for example, _ in parted(command.help)[1] if "npukit " in example]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_has_a_command_and_options_that_exist(example: str) -> None:
    line = re.sub(r'^.*?(npukit .*?)(\)"|$)', r"\1", example).partition(" -- ")[0]
    words = [word for word in shlex.split(line) if word != "|"][1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    known = {name_ for option in COMMANDS[name].params for name_ in (*option.opts, *option.secondary_opts)}
    if COMMANDS[name].context_settings.get("ignore_unknown_options"):  # the rest is a script's, or a configuration's
        return
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["analyse", "."], "analyze"),
        (["precison"], "precision"),
        (["sim", "setp"], "setup"),
        (["analyze", ".", "--targe", "x"], "--target"),
        (["migrate", ".", "--inplace"], "--in-place"),
        (["run", "--devcie", "sim", "a.py"], "--device"),
        (["train", "a.yaml", "--dryrun"], "--dry-run"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(npukit: Any, words: list[str], meant: str) -> None:
    ended = npukit(*words)
    assert ended.returncode == 2 and f"did you mean {meant}?" in ended.stderr and ended.stderr.count("\n") == 1


def test_910c_names_the_cards_of_the_a3_series(npukit: Any) -> None:
    assert card("910C").series == card("Ascend910C").series == "A3"
    assert card(Target.parse("torch_npu=2.7,card=910c").card).series == "A3"
    assert "did you mean 910B2C" not in npukit("plan", "x.yaml", "--card", "910C").stderr
