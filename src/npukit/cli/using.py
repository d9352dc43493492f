"""The options of verbs that use a model, made from their declarations in `llm/config/use.py`.

A verb's function takes `use`, the whole configuration, and the verb's own parameters, such as the device.
`with_options` replaces `use` by MODEL and a flag for each declared option.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from npukit.cli.help import OUTPUT

if TYPE_CHECKING:
    from npukit.llm.config.schema import Option
    from npukit.llm.config.use import Flag, Use, Verb

METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
# The titles of the groups in help. Adapters belong to their model.
PANELS = {
    "model": "Model",
    "adapters": "Model",
    "chat": "Conversation",
    "sampling": "Sampling",
    "engine": "Engine",
    "data": "Rows",
    "serve": "Server",
    "export": OUTPUT,
}
Explain = Annotated[bool, typer.Option("--explain", help="Describe all options, or those that match a word.")]
Model = Annotated[
    str,
    typer.Argument(help="Folder or hub name of a model, of a LoRA adapter or of a training run.", show_default=False),
]


def flags(verb: Verb) -> dict[str, tuple[str, ...]]:
    """Return the options that are flags of a verb, by key, with the flags' names.

    >>> flags("serve")["engine.gpu_memory_utilization"]
    ('--gpu-memory-utilization',)
    """
    from npukit.llm.config.schema import options
    from npukit.llm.config.use import MODEL_FLAGS, USED, Use

    names = {}
    for key, option in options(Use).items():
        group, _, name = key.partition(".")
        flag = _flag(option)
        is_inner = key.startswith("adapters.") or key.count(".") > 1 or (group == "model" and key not in MODEL_FLAGS)
        if group in USED[verb] and (flag.verbs is None or verb in flag.verbs) and not is_inner:
            names[key] = flag.names or (f"--{name.replace('_', '-')}",)
    if verb == "export":
        del names["model.dtype"]  # dtype of the loaded weights; export.dtype is that of the written ones
    return names


def _flag(option: Option) -> Flag:
    from npukit.llm.config.use import Flag

    return next((item for item in option.field.metadata if isinstance(item, Flag)), Flag())


def with_options(function: Callable[..., None], verb: Verb) -> Callable[..., None]:
    """Return the function with MODEL and flags as parameters, from which `use` is made."""
    from npukit.llm.config.schema import options
    from npukit.llm.config.use import Use

    known = options(Use)
    named = {_name(names): (key, names) for key, names in flags(verb).items()}
    own = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "use"]
    own = [parameter.replace(annotation=eval(str(parameter.annotation), function.__globals__)) for parameter in own]
    arguments = [parameter for parameter in own if _is_argument(parameter.annotation)]
    parameters = [
        inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, annotation=Model),
        *arguments,
        *(_parameter(name, known[key], names) for name, (key, names) in named.items()),
        *(parameter for parameter in own if parameter not in arguments),
        inspect.Parameter("explain", inspect.Parameter.KEYWORD_ONLY, annotation=Explain, default=False),
    ]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]

    def made(**values: Any) -> None:
        by_flag = {names[0]: (key, values.pop(name)) for name, (key, names) in named.items()}
        del values["explain"]  # TranslatedCommand has already translated them
        function(use=_use(verb, values.pop("model"), by_flag), **values)

    made.__doc__, made.__name__ = function.__doc__, function.__name__
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return made


def _use(verb: Verb, model: str, by_flag: Mapping[str, tuple[str, Any]]) -> Use:
    """Return the configuration of the flags. Mistakes are reported with the flags' names."""
    from npukit.llm.config.names import OptionNames
    from npukit.llm.config.raw_config import COMMAND_LINE, Mistakes, RawConfig
    from npukit.llm.config.schema import options
    from npukit.llm.config.use import Use
    from npukit.llm.config.validation import validate

    raw = RawConfig()
    raw.set(("model", "path"), model, COMMAND_LINE, "MODEL")
    for flag, (key, value) in by_flag.items():
        if value is not None and value != options(Use)[key].field.default:
            value = list(value) if isinstance(value, tuple) else value
            raw.set(tuple(key.split(".")), value, COMMAND_LINE, flag)
    use, mistakes = validate(raw, Use, OptionNames({}, f"npukit {verb} --help"))
    if use and use.named and verb != "serve":
        mistakes.append(raw.mistake(("adapters",), "--adapter NAME=PATH is for npukit serve: leave the name out."))
    if mistakes or use is None:
        raise Mistakes(mistakes)
    return use


def _name(names: tuple[str, ...]) -> str:
    return names[0].lstrip("-").replace("-", "_")


def _is_argument(annotation: Any) -> bool:
    return any(isinstance(item, typer.models.ArgumentInfo) for item in getattr(annotation, "__metadata__", ()))


def _parameter(name: str, option: Option, names: tuple[str, ...]) -> inspect.Parameter:
    """Return a flag for typer. It has no bounds: they are checked with the rest, for the same messages everywhere."""
    from npukit.llm.config.schema import parts

    annotation, default = option.field.annotation, option.field.default
    kinds = [part for part in parts(annotation) if isinstance(part, type) or typing.get_origin(part) is Literal]
    kind = next(part for part in kinds if part is not type(None))
    is_list = typing.get_origin(annotation) is tuple
    if kind is bool and default is not False:
        names = (f"{names[0]}/--no-{names[0][2:]}", *names[1:])
    if is_list:
        kind, default = list[str] | None, None
    meaning = option.meaning[0].upper() + option.meaning[1:]
    info = typer.Option(
        *names,
        help=f"{meaning}.{' Repeatable.' * is_list}",
        show_default=default not in (None, False, ""),
        metavar="TEXT" if is_list else METAVARS.get(kind),
        envvar=_flag(option).variable,
        rich_help_panel=OUTPUT if names[0] in ("--output", "--force") else PANELS[option.key.partition(".")[0]],
    )
    kind = kind if is_list or default is not None else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def explain(verb: Verb, word: str) -> str:
    """Show the options of a verb as a table: those that match a word, or all."""
    from npukit.llm.config.explain import as_text
    from npukit.llm.config.use import USED, Use

    return as_text(Use, word, USED[verb])
