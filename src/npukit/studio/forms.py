"""Forms of verbs: turns the values of a form into the words of a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from npukit.studio.folders import Folders
from npukit.studio.studio import BadRequest


def words(form: Mapping[str, Any], values: Mapping[str, Any], folders: Folders) -> list[str]:
    """The words after the verb, without empty and default values.

    >>> words({"options": [{"name": "model", "flag": "", "kind": "path"}]}, {"model": "runs/lora"}, folders)
    ['runs/lora']
    """
    known = {option["name"]: option for option in form["options"]}
    if unknown := values.keys() - known.keys():
        raise BadRequest(f"There is no option {sorted(unknown)[0]}.")
    folders.check(dict(values))
    flags: list[str] = []
    arguments: list[str] = []
    script: list[str] = []
    for name, option in known.items():
        value = values.get(name)
        if value in (None, "", [], option.get("default")):
            if option.get("required") and value in (None, "", []):
                raise BadRequest(f"{option['label']} is missing.")
            continue
        if option["kind"] == "switch":
            flags += [option["flag"]] if value is True else option.get("off", [])[:1]
            continue
        if option["kind"] == "command":
            script = _split(value)
            continue
        several = value if isinstance(value, list) else [value]
        for item in several:
            if not isinstance(item, str | int | float) or isinstance(item, bool) or str(item).startswith("-"):
                raise BadRequest(f"{option['label']} is not a value that can be used.")
            if option["flag"]:
                flags += [option["flag"], str(item)]
            else:
                arguments.append(str(item))
    return [*arguments, *flags, *script]


def _split(value: Any) -> list[str]:
    """The words of a command, without a shell."""
    try:
        words = shlex.split(value)
    except (ValueError, AttributeError):
        raise BadRequest("The command cannot be read: close the quotes.") from None
    if words and words[0].startswith("-") and words[0] != "-m":
        raise BadRequest("The command begins with a script, or with python.")
    return words
