"""Which training examples of LLaMA-Factory and ms-swift does npukit take as they are, and do they train?

    python -m benchmarks switching --llama-factory CHECKOUT --ms-swift CHECKOUT [--run] [--only NAME ...]

LLaMA-Factory: every YAML file below examples/ that has a `stage` or a `train_dataset`, and every training command of
the scripts there. ms-swift: every sft, pt and rlhf command of the scripts below examples/. The scripts run in bash with
nothing on PATH but a stand-in that records how it was called, so that loops, variables and continued lines are bash's
own business. Nothing is downloaded. Any folder with configurations below examples/ will do in place of a checkout.

With --run, every accepted example trains three steps: read as it is, then its model gives way to a random one of two
layers of the same family, its data to a few rows of the same kind, and it runs on the CPU in this process, in fp32,
without DeepSpeed, on one device. Task, tuner, loss, optimizer, template, packing and schedule stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import yaml
from benchmarks.corpora.small_runs.examples import train_small

from npukit import packages
from npukit.errors import NpukitError
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.reading.read import predicts, read
from npukit.llm.reading.read_use import read_use

RECORDER = """#!{python} -S
import json, os, sys
with open({file!r}, "a") as file:
    print(json.dumps([sys.argv, dict(os.environ)]), file=file)
"""
PROGRAMS = ("swift", "llamafactory-cli", "torchrun", "accelerate", "deepspeed", "python", "python3")
HARMLESS = ("expr", "nproc", "date", "nohup", "env", "basename", "dirname", "seq")
VERBS = ("sft", "pt", "rlhf")


@dataclass(frozen=True)
class Example:
    """A file or command, as its project ships it."""

    tool: str
    name: str
    kind: str
    file: Path | None
    words: tuple[str, ...]
    environ: dict[str, str]

    def command(self) -> tuple[str, Path | None, list[str]]:
        """npukit's verb for it, its file and its words."""
        file, words = self.file, list(self.words)
        if words and words[0].endswith((".yaml", ".yml")):
            file = Path(words.pop(0))
        return self.kind if self.tool == "ms-swift" else "train", file, words


@dataclass(frozen=True)
class Verdict:
    """What npukit says to it: nothing, or every reason for a refusal.

    `needs_files`: understood, but it names data or a folder that the example does not come with.
    """

    tool: str
    kind: str
    name: str
    refused: tuple[str, ...]
    needs_files: bool = False

    @property
    def accepted(self) -> bool:
        return not self.refused or self.needs_files


def of_llama_factory(checkout: Path) -> Iterator[Example]:
    for file in sorted((checkout / "examples").rglob("*.yaml")):
        keys = yaml.safe_load(file.read_text())
        if isinstance(keys, dict) and {"stage", "train_dataset"} & set(keys):
            name = str(file.relative_to(checkout / "examples"))
            yield Example("LLaMA-Factory", name, keys.get("stage", "v1"), file, (), {})
    for name, argv, environ in commands(checkout):
        if words := _of_llama_factory(argv):
            yield Example("LLaMA-Factory", name, "train", None, words, environ)


def of_swift(checkout: Path) -> Iterator[Example]:
    for name, argv, environ in commands(checkout):
        if case := _of_swift(argv):
            yield Example("ms-swift", name, case[0], None, case[1], environ)


def commands(checkout: Path) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Every program that the scripts start, with its arguments and variables."""
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.jsonl"
        for program in PROGRAMS:
            stand_in = Path(folder) / program
            stand_in.write_text(RECORDER.format(python=sys.executable, file=str(calls)))
            stand_in.chmod(0o755)
        for harmless in HARMLESS:
            (Path(folder) / harmless).symlink_to(f"/usr/bin/{harmless}")
        for script in sorted((checkout / "examples").rglob("*.sh")):
            calls.write_text("")
            command = ["/bin/bash", str(script)]
            variables = {"PATH": folder, "HOME": folder}
            with contextlib.suppress(subprocess.TimeoutExpired):  # a loop that waits for a server
                subprocess.run(command, cwd=checkout, env=variables, timeout=10, capture_output=True, input=b"")
            for number, line in enumerate(calls.read_text().splitlines()):
                argv, environ = json.loads(line)
                kept = {key: environ[key] for key in environ if key not in ("PATH", "HOME")}
                yield f"{script.relative_to(checkout / 'examples')}:{number}", argv, kept


def _of_llama_factory(argv: list[str]) -> tuple[str, ...] | None:
    """What follows `llamafactory-cli train`, or the script that was called before there was one."""
    if argv[0].endswith("/llamafactory-cli"):
        return tuple(argv[2:]) if argv[1:2] == ["train"] else None
    script = next((at for at, word in enumerate(argv[:20]) if re.search(r"(^|/)train(_bash)?\.py$", word)), None)
    words = tuple(argv[script + 1 :]) if script else ()
    is_theirs = "--stage" in words or any(word.endswith((".yaml", ".yml")) for word in words[:1])
    return words if is_theirs else None


def _of_swift(argv: list[str]) -> tuple[str, tuple[str, ...]] | None:
    """The verb of ms-swift and what follows it, however it was started; Megatron's is another program."""
    joined = " ".join(argv)
    if "megatron" in joined.split(" --")[0]:
        return None
    for at, word in enumerate(argv[:12]):
        verb = word if at == 1 and argv[0].endswith("/swift") else ""
        if match := re.search(r"swift/cli/(?:_megatron/)?(\w+)\.py$", word):
            verb = match[1]
        if re.search(r"(^|/)llm_sft\.py$", word):  # until 2.0
            verb = "sft"
        if verb in VERBS:
            return verb, tuple(argv[at + 1 :])
    return None


def judge(example: Example, checkout: Path) -> Verdict:
    os.chdir(checkout)
    packages.is_installed = lambda package: True  # wandb and the like
    refused = _refusals(example, files=True)
    needs_files = bool(refused) and not _refusals(example, files=False)
    return Verdict(example.tool, _kind(example), example.name, refused, needs_files)


def _refusals(example: Example, files: bool) -> tuple[str, ...]:
    verb, file, words = example.command()
    try:
        if verb == "train" and predicts(file, words):
            return _without_folders(file, words, files)
        read(file, words, example.environ, verb, files=files)
    except Mistakes as mistakes:
        return tuple(mistake.text for mistake in mistakes.mistakes)
    except NpukitError as error:
        return (str(error),)
    except Exception as error:  # a bug of npukit: counted, and named
        return (f"BUG {type(error).__name__}: {error}",)
    return ()


def _without_folders(file: Path | None, words: list[str], files: bool) -> tuple[str, ...]:
    """What is answered instead of trained; its model or adapter is made by another example."""
    try:
        read_use("infer", [str(file), *words])
    except Mistakes as mistakes:
        wrong = [mistake.text for mistake in mistakes.mistakes]
        return tuple(text for text in wrong if files or not text.startswith("there is no folder"))
    return ()


def _kind(example: Example) -> str:
    if example.kind != "rlhf":
        return example.kind
    words = list(example.words)
    return f"rlhf {words[words.index('--rlhf_type') + 1]}" if "--rlhf_type" in words else "rlhf dpo"


def show(verdicts: list[Verdict]) -> None:
    for tool in dict.fromkeys(verdict.tool for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict.tool == tool]
        print(f"\n{tool}: {sum(verdict.accepted for verdict in own)} of {len(own)} accepted")
        incomplete = sum(verdict.needs_files for verdict in own)
        print(f"  {incomplete} of these name files that the example does not come with")
        for kind in sorted({verdict.kind for verdict in own}):
            accepted = [verdict.accepted for verdict in own if verdict.kind == kind]
            print(f"  {kind:16} {sum(accepted):4} of {len(accepted)}")
        refused = [verdict.refused for verdict in own if not verdict.accepted]
        causes = Counter(_cause(text) for reasons in refused for text in set(reasons))
        alone = Counter(_cause(reasons[0]) for reasons in refused if len(reasons) == 1)
        print("  refused because of (the only reason in):")
        for cause, count in causes.most_common():
            print(f"  {count:4} ({alone[cause]:3})  {cause}")


def _cause(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:150]


def main(
    llama_factory: Path | None = None,
    ms_swift: Path | None = None,
    only: Annotated[tuple[str, ...], "examples with one of these in their name"] = ("",),
    list: Annotated[bool, "show each example and why it was refused"] = False,
    run: Annotated[bool, "train three steps of each accepted example"] = False,
    results: Path | None = None,
) -> None:
    verdicts = []
    for checkout, examples in ((llama_factory, of_llama_factory), (ms_swift, of_swift)):
        if checkout is None:
            continue
        for example in examples(checkout.absolute()):
            if not any(part in example.name for part in only):
                continue
            verdicts.append(verdict := judge(example, checkout.absolute()))
            if list:
                answer = "yes" if verdict.accepted else "no "
                print(f"{answer} {verdict.tool} {verdict.kind} {verdict.name}", *verdict.refused, sep="\n      ")
            if run and verdict.accepted:
                family, result = train_small(*example.command(), example.environ)
                print(f"{example.tool:13} {verdict.kind:9} {example.name:60} {family:12} {result}", flush=True)
    show(verdicts)
    if results:
        results.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
