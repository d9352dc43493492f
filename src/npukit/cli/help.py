"""The help of a verb: its usage, its examples, and its options by group, without names of Python types.

Examples stand at the end of a verb's docstring, below a line `Examples:`. An option's first long name is shown; the
names after it are those of other tools, which work and are not shown.
"""

from __future__ import annotations

import functools
import os
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from npukit.quiet import VERBOSITY
from npukit.report.language import language, translated
from npukit.report.wrapping import columns, padded, wrap

OUTPUT, SIMULATED, DEVICES = "Output", "Simulated NPU", "Devices"  # titles of groups in several verbs
COMMON = "Common options"
EXAMPLES = "\n\nExamples:\n"
METAVARS: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}
FIRST_COLUMN = 30


def _set_verbosity(level: str) -> Any:
    def callback(requested: bool) -> bool:
        if requested:
            os.environ[VERBOSITY] = level
        return requested

    return callback


QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", expose_value=False, callback=_set_verbosity("quiet"), rich_help_panel=COMMON,
        help="Show results and problems only.",
    ),
]  # fmt: skip
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", expose_value=False, callback=_set_verbosity("verbose"), rich_help_panel=COMMON,
        help="Show the output of the libraries, and tracebacks of errors.",
    ),
]  # fmt: skip


@functools.cache
def _common_options() -> tuple[Any, ...]:
    app = typer.Typer(add_completion=False)

    @app.command()
    def common(quiet: QuietOption = False, verbose: VerboseOption = False) -> None: ...

    return tuple(typer.main.get_command(app).params)


class Command(TyperCommand):
    """A verb."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params = [*self.params, *_common_options()]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest: list[str] = super().parse_args(ctx, args)
        script = (ctx.params.get("command") or [""])[0]
        if script.startswith("-") and script != "-m" and not ctx.allow_interspersed_args:
            # A script follows, and this would be one of its options.
            ctx.fail(f"There is no option {script}{did_you_mean(script, long_names(self))}")
        return rest

    def invoke(self, ctx: Any) -> Any:
        if not ctx.params.get("json"):
            return super().invoke(ctx)
        from npukit.cli.results import answer

        return answer(ctx.command_path, lambda: super(Command, self).invoke(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, usage(self), translated("Usage: "))
        text, examples = parted(self.help or "")
        write_text(formatter, text)
        if examples:
            shown = aligned([(command, translated(comment)) for command, comment in examples])
            formatter.write("".join(f"{line}\n" for line in ["", heading("Examples"), *indented(shown)]))
        for title, rows in sections(self, ctx):
            write_rows(formatter, title, rows)
        write_text(formatter, self.epilog or "")


def indented(lines: Iterable[str]) -> list[str]:
    """Lines indented below a title."""
    return [f"  {line}" for line in lines]


def heading(title: str) -> str:
    """A title above its rows."""
    return translated(title) + (":" if language() == "en" else "\uff1a")


def write_text(formatter: Any, text: str) -> None:
    """Write paragraphs in the language of the user."""
    for block in filter(None, re.split(r"\n\s*\n", text.strip())):
        lines = indented(wrap(translated(block), formatter.width - 2))
        formatter.write("\n" + "\n".join(lines) + "\n")


def write_rows(formatter: Any, title: str, rows: Sequence[tuple[str, str]], first: int = 0) -> None:
    """Write a section: a column of names, of this width or that of the widest, and their meanings."""
    first = first or min(max(columns(name) for name, _ in rows), FIRST_COLUMN)
    lines = ["", heading(title)]
    for name, text in rows:
        meant = wrap(text, formatter.width - first - 4) or [""]
        head = [f"  {padded(name, first)}  {meant[0]}".rstrip()]
        if columns(name) > first:
            head = [f"  {name}", f"  {'':{first}}  {meant[0]}"]
        lines += [*head, *(f"  {'':{first}}  {line}" for line in meant[1:])]
    formatter.write("\n".join(lines) + "\n")


def parted(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The help of a verb without its examples, and the examples with their comments.

    >>> parted("Say hello.\\n\\nExamples:\\n    npukit hello   # to all\\n")
    ('Say hello.', [('npukit hello', 'to all')])
    """
    before, _, after = text.partition(EXAMPLES)
    lines = (line.strip().partition(" # ") for line in after.splitlines() if line.strip())
    return before, [(command.strip(), comment.strip()) for command, _, comment in lines]


def aligned(examples: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of examples with aligned comments."""
    width = max((len(command) for command, comment in examples if comment), default=0)
    return [f"{command:<{width}}  # {comment}" if comment else command for command, comment in examples]


def usage(command: Any) -> str:
    """The usage after the name of a command: `[OPTIONS] PATH...`."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    return " ".join(["[OPTIONS]", *map(argument_name, arguments)])


def argument_name(param: Any) -> str:
    """An argument in a usage line, by its metavar if it has one."""
    if param.metavar:
        return str(param.metavar)
    name = param.name.upper() + "..." * (param.nargs == -1)
    return name if param.required else f"[{name}]"


def bare_name(param: Any) -> str:
    """The name of an argument without the brackets of an optional one."""
    return argument_name(param).translate(str.maketrans("", "", "[]"))


def sections(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The arguments and options of a command by group, as rows of name and meaning."""
    params = command.get_params(ctx)
    arguments = [param for param in params if param.param_type_name == "argument" and param.help]
    if arguments:
        yield "Arguments", [(bare_name(param), meaning(param)) for param in arguments]
    options = [param for param in params if param.param_type_name == "option" and not param.hidden]
    titles = dict.fromkeys(["Options", *map(panel, options)])
    titles[COMMON] = titles.pop(COMMON, None)  # the last one
    for title in titles:
        if rows := [(option_name(param), meaning(param)) for param in options if panel(param) == title]:
            yield title, rows


def panel(param: Any) -> str:
    """The title of an option's group."""
    return COMMON if "--help" in param.opts else getattr(param, "rich_help_panel", None) or "Options"


def shown_names(param: Any) -> list[str]:
    """The short and the first long name of an option, and its negation."""
    short = [name for name in param.opts if not name.startswith("--")]
    long = [name for name in param.opts if name.startswith("--")]
    return [*short, *long[:1], *param.secondary_opts[:1]]


def long_name(param: Any) -> str:
    """The first long name of an option."""
    return str(next(name for name in param.opts if name.startswith("--")))


def long_names(command: Any) -> list[str]:
    """The long names of a command's options."""
    return [name for param in command.params for name in shown_names(param) if name.startswith("--")]


def option_name(param: Any) -> str:
    """An option as it is written: `-o, --output FILE`."""
    names = ", ".join(shown_names(param))
    return names if param.is_flag else f"{names} {metavar(param)}"


def metavar(param: Any) -> str:
    """The placeholder for the value of an option."""
    if param.metavar:
        return str(param.metavar)
    if known := choices(param):
        return "|".join(known)
    return METAVARS.get(inner_type(param)) or str(param.name).rpartition("_")[2].upper()


def inner_type(param: Any) -> Any:
    """The type of an option's or argument's value, or of each of its values."""
    annotation = param.type_descriptor.annotation
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is list else annotation


def choices(param: Any) -> list[str]:
    """The values of an option whose type is an enumeration or a Literal."""
    annotation = param.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    return [str(choice) for choice in typing.get_args(annotation)] if typing.get_origin(annotation) is Literal else []


def meaning(param: Any) -> str:
    """The meaning of an option or argument, with its default."""
    notes = []
    if isinstance(getattr(param, "envvar", None), str):
        notes.append(translated(f"variable: {param.envvar}"))
    if value := default(param):
        notes.append(translated(f"default: {translated(value)}"))
    if param.required and param.param_type_name == "option":
        notes.append(translated("required"))
    return " ".join(filter(None, [translated(param.help or ""), f"[{'; '.join(notes)}]" if notes else ""]))


def default(param: Any) -> str:
    """The default of an option in words; empty if there is none."""
    if isinstance(param.show_default, str) or not param.show_default:
        return param.show_default or ""
    value = getattr(param.default, "value", param.default)
    if value is None or callable(value) or value is False or str(value) in ("", "()", "[]") or "UNSET" in str(value):
        return ""
    return "on" if value is True else str(value)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`: did you mean --json?` for a misspelt word; empty if none is similar.

    >>> did_you_mean("analyse", ["analyze", "advise"])
    ': did you mean analyze?'
    """
    near = nearest(word, known)
    return f": did you mean {near}?" if near else "."


def nearest(word: str, known: Sequence[str]) -> str:
    """The known word that was probably meant; empty if none is similar."""
    import difflib

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7) or [name for name in known if name.startswith(word)]
    return near[0] if near else ""


def usage_sentence(error: Any) -> tuple[str, str]:
    """A usage error, with what was probably meant and the command for help."""
    where = error.ctx.command_path if error.ctx is not None else "npukit"
    sentence = error.format_message().rstrip(".") + "."
    sentence = re.sub(r"('-[^']+')( / '-[^']+')+", r"\1", sentence)  # npukit's own name of an option is the first
    argument = getattr(error, "param", None)
    if sentence.startswith("Missing argument") and argument is not None:  # click names the function's parameter
        sentence = f"Missing argument '{bare_name(argument)}'."
    if hasattr(error, "possibilities") and error.ctx is not None:  # click's NoSuchOption
        known = long_names(error.ctx.command)
        sentence = f"There is no option {error.option_name}{did_you_mean(error.option_name, known)}"
    return f"{sentence.replace('?.', '?')} See `{where} --help`.", f"{where} --help"
