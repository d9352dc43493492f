"""The verbs, in the order in which a newcomer needs them. A verb is imported when it is called, or when help lists it.

To add one, write `npukit/cli/NAME.py` with a function NAME and add its line here.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import typer
from typer.core import TyperGroup

from npukit.cli.help import Command, did_you_mean, long_names, sections, write_rows, write_text
from npukit.report.language import translated

SCRIPT_FOLLOWS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
COMMAND_FOLLOWS = {"allow_interspersed_args": False}
OPTIONS_OF_OTHERS = {"ignore_unknown_options": True}
MORE_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True}


@dataclass(frozen=True)
class Verb:
    """Where a verb is implemented: in a function, or in a typer app with subcommands."""

    name: str
    module: str = ""  # the module in npukit.cli, by default named like the verb
    settings: Mapping[str, Any] = field(default_factory=dict)  # click's context settings
    also: tuple[str, ...] = ()  # the name in other tools
    page: str = ""  # its page of the documentation, by default named like the verb
    # The verb of npukit.llm.config.use that it takes options of, in npukit's or another tool's terms.
    uses: Literal["chat", "infer", "serve", "export", "eval", ""] = ""
    extra: str = "sim"  # the extra of npukit that installs everything that this verb can use


VERBS = {
    "Port": (
        Verb("doctor", page="check-a-machine"),
        Verb("analyze", page="port-a-script"),
        Verb("migrate", page="port-a-script"),
        Verb("verify"),
        Verb("port", page="port-a-framework"),
    ),
    "Run": (
        Verb("run", settings=SCRIPT_FOLLOWS, page="launch"),
        Verb("launch", settings=SCRIPT_FOLLOWS),
        Verb("container", settings=COMMAND_FOLLOWS, page="install-container"),
        Verb("devices", page="check-a-machine"),
    ),
    "Train": (
        Verb("plan", page="does-it-fit", extra="train"),
        Verb("tune", page="does-it-fit", extra="train"),
        Verb("init", page="fine-tune", extra="train"),
        Verb("train", settings=OPTIONS_OF_OTHERS, page="fine-tune", extra="train"),
        Verb("sft", "train", settings=OPTIONS_OF_OTHERS, page="fine-tune", extra="train"),
        Verb("pt", "train", settings=OPTIONS_OF_OTHERS, page="fine-tune", extra="train"),
        Verb("rlhf", "train", settings=OPTIONS_OF_OTHERS, page="preferences", extra="train"),
        Verb("rewards", page="grpo", extra="train"),
        Verb("new", page="train-any-model", extra="train"),
        Verb("schema", page="fine-tune", extra="train"),
    ),
    "Use": (
        Verb("chat", page="infer", uses="chat", extra="use"),
        Verb("infer", uses="infer", extra="use"),
        Verb("serve", settings=MORE_OPTIONS, also=("deploy", "api", "app", "webchat"), uses="serve", extra="serve"),
        Verb("export", also=("merge-lora",), uses="export", extra="use"),
        Verb("eval", page="infer", uses="eval", extra="use"),
    ),
    "Diagnose": (
        Verb("studio", also=("webui", "web-ui"), extra="studio"),
        Verb("profile", settings=SCRIPT_FOLLOWS, page="slow"),
        Verb("advise", page="slow"),
        Verb("explain", page="errors"),
        Verb("precision", page="loss-differs"),
        Verb("selftest", page="check-a-machine", extra="train"),
        Verb("report", page="check-a-machine"),
        Verb("sim", page="simulated-npu"),
        Verb("docs", page="index"),
        Verb("skill", page="agents"),
        Verb("mcp", page="agents", extra="mcp"),
    ),
}


def extra_of(arguments: Sequence[str]) -> str:
    """Return the extra that the verb of a command line needs.

    >>> extra_of(["-v", "train", "a.yaml"])
    'train'
    """
    every = [verb for group in VERBS.values() for verb in group]
    return next((verb.extra for word in arguments for verb in every if word in (verb.name, *verb.also)), "")


class Group(TyperGroup):
    """Subcommands of a verb. Without one of them it shows its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:  # as git, docker and pip do
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if not args[0].startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            known = [*self.list_commands(ctx), *long_names(self)]
            ctx.fail(f"There is no command {args[0]}{did_you_mean(args[0], known)}")
        resolved: tuple[str | None, Any, list[str]] = super().resolve_command(ctx, args)
        return resolved

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, rows in sections(self, ctx):
            write_rows(formatter, title, rows)
        self.format_commands(ctx, formatter)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        write_text(formatter, self.help or "")

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] COMMAND [ARGS]...", translated("Usage: "))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_text(formatter, self.epilog or "")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands: dict[str, Any] = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        self.list_in(formatter, "Commands", {name: command.help for name, command in commands.items()})

    def list_in(self, formatter: Any, title: str, commands: Mapping[str, str], width: int = 0) -> None:
        """Write a section of help: each command with the whole first line of its help."""
        rows = [(name, translated(help.partition("\n")[0])) for name, help in commands.items()]
        write_rows(formatter, title, rows, width)


class Verbs(Group):
    """The command `npukit`, whose help lists the verbs by purpose, each with its whole summary."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [verb.name for group in VERBS.values() for verb in group]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        matching = (verb for group in VERBS.values() for verb in group if cmd_name in (verb.name, *verb.also))
        return next((load(verb) for verb in matching), None)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, verbs in VERBS.items():
            self.list_in(formatter, title, {verb.name: described(verb) for verb in verbs}, width)


def described(verb: Verb) -> str:
    """Return the first line of a verb's help from its source. Importing all verbs would take most of the time."""
    text = Path(__file__).with_name(f"{verb.module or verb.name}.py").read_text(encoding="utf-8")
    pattern = rf'^(?:def {verb.name}\(.*?"""|{verb.name} = _verb\(.*?"""|{verb.name} = new_app\(help=")([^"\n]+)'
    match = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    return match[1] if match else ""


def load(verb: Verb) -> Any:
    """Return the verb as a click command.

    >>> load(Verb("doctor", page="check-a-machine")).name
    'doctor'
    """
    from npukit.cli.translated import TranslatedCommand
    from npukit.cli.using import with_options

    app = getattr(importlib.import_module(f"npukit.cli.{verb.module or verb.name}"), verb.name)
    if not isinstance(app, typer.Typer):
        function, app = app, new_app()
        function = with_options(function, verb.uses) if verb.uses else function
        kind = TranslatedCommand if verb.uses else Command
        app.command(name=verb.name, cls=kind, context_settings=dict(verb.settings))(function)
    command: Any = typer.main.get_command(app)
    command.verb = verb.uses
    command.epilog = f"Guide: npukit docs {verb.page or verb.name}"
    command.name = verb.name
    return command


def new_app(cls: type[Group] = Group, **settings: Any) -> typer.Typer:
    """Return a typer app for npukit, with plain help, which starts twice as fast as help in boxes."""
    return typer.Typer(
        cls=cls,
        add_completion=cls is Verbs,  # --install-completion is an option of npukit, not of each verb
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
        **settings,
    )
