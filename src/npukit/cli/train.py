"""npukit train, sft, pt"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from npukit.cli.help import long_names
from npukit.cli.options import CardOption, DeviceOption, DevicesOption, FaultOption, JsonOption
from npukit.cli.results import expect, show
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted
from npukit.report.language import translated
from npukit.report.terminal import say

if TYPE_CHECKING:
    from npukit.llm.config.options import Config

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[CONFIG.yaml] [KEY=VALUE|--KEY VALUE]…", show_default=False)
]
Explain = Annotated[bool, typer.Option("--explain", help="Describe all options, or those that match a word.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, the memory and the steps without training.")]

NEAR = 0.85  # a word this similar to an option is treated as a misspelling


def _verb(name: str, help: str) -> Callable[..., None]:
    def verb(
        context: typer.Context,
        words: Words = None,
        device: DeviceOption = Wanted.auto,
        devices: DevicesOption = None,
        card: CardOption = DEFAULT_CARD,
        explain: Explain = False,
        dry_run: DryRun = False,
        fault: FaultOption = None,
        json: JsonOption = False,
    ) -> None:
        if explain:
            _explain((words or [""])[0], json)
        else:
            _check_options(words or [], context)
            _train(name, words or [], device, devices, card, dry_run, fault or [], json)

    verb.__name__, verb.__doc__ = name, help
    return verb


train = _verb(
    "train",
    """Train a language model from a YAML file.

    The file may be npukit's own, LLaMA-Factory's or ms-swift's. KEY=VALUE after it overrides an option, such as
    training.learning_rate=1e-5. Without --devices, every visible card is used. `npukit train --explain` describes every
    option.

    Examples:
        npukit train train.yaml --dry-run  # the plan, the memory and the steps
        npukit train train.yaml training.learning_rate=1e-5 --devices 8
        npukit train qwen3_lora_sft.yaml  # a file of LLaMA-Factory
    """,
)
sft = _verb(
    "sft",
    """Fine-tune a language model with ms-swift's flags.

    For example --model FOLDER --dataset FILE --lora_rank 8. npukit's own options are flags as well, such as
    --training.learning_rate 1e-4. As in ms-swift, one device is used unless --devices or NPROC_PER_NODE says more.

    Examples:
        npukit sft --model Qwen/Qwen2-0.5B --dataset rows.jsonl --lora_rank 8 --output_dir run
        NPROC_PER_NODE=8 npukit sft --model Qwen/Qwen2-0.5B --dataset rows.jsonl
    """,
)
pt = _verb(
    "pt",
    """Pre-train a language model with ms-swift's flags.

    Takes the flags of `npukit sft`; the data is plain text.

    Examples:
        npukit pt --model Qwen/Qwen2-0.5B --dataset text.jsonl --output_dir run
        npukit pt --model Qwen/Qwen2-0.5B --dataset text.jsonl --dry-run
    """,
)

rlhf = _verb(
    "rlhf",
    """Learn from preferences or rewards with ms-swift's flags.

    --rlhf_type is dpo, orpo, simpo, cpo, kto, rm or grpo; the other flags are those of `npukit sft`. Rows contain a
    rejected answer beside the good one (rejected_response) or, for kto, a label that is true or false; grpo samples its
    own answers.

    Examples:
        npukit rlhf --rlhf_type dpo --model Qwen/Qwen2-0.5B --dataset pairs.jsonl
        npukit rlhf --rlhf_type grpo --model Qwen/Qwen2-0.5B --dataset questions.jsonl --reward_funcs format
        npukit rlhf --rlhf_type kto --model Qwen/Qwen2-0.5B --dataset labels.jsonl --dry-run
    """,
)


def _train(
    verb: str,
    words: list[str],
    device: Wanted,
    devices: int | None,
    card: str,
    dry_run: bool,
    faults: list[str],
    json: bool,
) -> None:
    from npukit.cli.run import check_faults
    from npukit.launch.devices import choose
    from npukit.llm.reading.read import predicts, read
    from npukit.llm.start import asked_ranks, asked_world_size, nodes_of, start
    from npukit.llm.tasks.task import of as task_of

    if not words:
        raise NpukitError(f"Name a YAML file, or see `npukit {verb} --help`.")
    has_file = not words[0].startswith("--") and "=" not in words[0]
    file, words = (Path(words[0]), words[1:]) if has_file else (None, words)
    if verb == "train" and predicts(file, words):
        _predict([*([str(file)] if file else []), *words], device, devices, card, json)
    reading = read(file, words, os.environ, verb, asked_world_size(devices, os.environ))
    every_card = verb == "train" and reading.dialect != "ms-swift"
    count = asked_ranks(devices, os.environ) or (None if every_card else 1)
    chosen = choose(device, count, card, suppose=dry_run)
    check_faults(faults, chosen)
    reading.check_card(chosen.card, chosen.has_bf16)
    _print_notes(reading.dialect, reading.notes)
    nodes = nodes_of(os.environ).nodes
    if "LOCAL_RANK" not in os.environ:
        task_of(reading.config).check_ranks(reading.config, chosen.count * nodes)
    if dry_run:
        _show_plan(reading.config, chosen.count * nodes, chosen.card, nodes, json)
    else:
        _warn_if_too_large(reading.config, chosen.count * nodes, chosen.card)
        expect(lambda: _summary(reading.config))
        start(reading.config, chosen, faults, reading.raw.theirs)


def _predict(words: list[str], device: Wanted, devices: int | None, card: str, json: bool) -> NoReturn:
    """Run `npukit infer` for LLaMA-Factory's `train` with do_predict."""
    from npukit.cli import app

    options = ["--device", device.value, "--card", card]
    options += ["--devices", str(devices)] if devices else []
    options += ["--json"] if json else []
    raise typer.Exit(app(["infer", *words, *options], prog_name="npukit", standalone_mode=False) or 0)


def _check_options(words: list[str], context: typer.Context) -> None:
    """Refuse misspelt options of this command, which would be taken for options of the configuration."""
    from npukit.llm.config.nearest import nearest

    known = long_names(context.command)
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("--") and (near := nearest(name, known, cutoff=NEAR)):
            raise NpukitError(f"There is no option {name}: did you mean {near}?")


def _print_notes(dialect: str, notes: list[str]) -> None:
    if notes and os.environ.get("LOCAL_RANK", "0") == "0":
        print(
            translated("npukit: note:" if dialect == "npukit" else f"npukit: read as {dialect}'s options; note:"),
            *(f"  {translated(note)}" for note in notes),
            sep="\n",
            file=sys.stderr,
        )


def _show_plan(config: Config, devices: int, card: str, nodes: int, json: bool) -> None:
    from npukit.performance.plan.job import plan
    from npukit.performance.plan.text import dry_run

    planned = plan(config, devices, card, nodes)
    show(planned.as_json(), lambda: dry_run(planned), json)


def _summary(config: Config) -> dict[str, Any]:
    """Return the summary that the training wrote at its end."""
    from json import loads

    file = config.training.output / "summary.json"
    return {"output": config.training.output, **(loads(file.read_text(encoding="utf-8")) if file.is_file() else {})}


def _warn_if_too_large(config: Config, devices: int, card: str) -> None:
    """Warn instead of refusing the run, because the figures are estimates."""
    from npukit.performance.plan.job import needed_and_usable
    from npukit.performance.plan.text import verdict

    figures = needed_and_usable(config, devices, card) if card and os.environ.get("LOCAL_RANK", "0") == "0" else None
    if figures and figures[0] > figures[1]:
        say(f"this probably {verdict(*figures, card)}; `npukit plan --fit` finds a change that helps.")


def _explain(word: str, json: bool) -> None:
    from npukit.llm.config.explain import as_data, as_text
    from npukit.llm.config.options import Config

    show({"options": as_data(Config, word)}, lambda: as_text(Config, word), json)
