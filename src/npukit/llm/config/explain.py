"""Every option, as a table for people and for programs."""

from __future__ import annotations

from pydantic import BaseModel

from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest
from npukit.llm.config.schema import Option, options, plain


def matching(schema: type[BaseModel], word: str) -> list[Option]:
    """The options with `word` in their key; all of them if it is empty."""
    known = options(schema)
    wanted = [option for option in known.values() if word.lower() in option.key.lower()]
    if not wanted:
        ends = {key.rsplit(".", 1)[-1]: key for key in known}
        near = nearest(word, known) or ends.get(nearest(word, ends) or "")
        raise NpukitError(f"There is no option {word}" + (f": did you mean {near}?" if near else "."))
    return wanted


def as_text(schema: type[BaseModel], word: str = "") -> str:
    """The table for people."""
    lines = []
    for option in matching(schema, word):
        default = "required" if option.field.is_required() else f"default {option.default}"
        only = ""
        if when := option.when:
            only = f", only with {when.key}: {plain(when.values[0] if len(when.values) == 1 else when.values)}"
        lines.append(f"{option.key}\n    {option.meaning}\n    {option.type} ({default}{only})")
    return "\n".join(lines)


def as_json(schema: type[BaseModel], word: str = "") -> list[dict[str, str]]:
    """The table for programs."""
    names = ("key", "type", "default", "meaning")
    return [{name: getattr(option, name) for name in names} for option in matching(schema, word)]
