"""All options as a table, for people and for programs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import TypeAdapter

from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest
from npukit.llm.config.schema import Option, choices, options, plain
from npukit.report.language import translated
from npukit.train.options import FrozenOptions

KINDS = {"boolean": "boolean", "integer": "integer", "number": "number", "string": "text", "path": "path"}
KINDS |= {"array": "list", "object": "mapping"}
BOUNDS = {"minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}


def matching(schema: type[FrozenOptions], word: str) -> list[Option]:
    """Return the options with `word` in their key, or all of them if it is empty."""
    known = options(schema)
    matches = [option for option in known.values() if word.lower() in option.key.lower()]
    if not matches:
        ends = {key.rsplit(".", 1)[-1]: key for key in known}
        near = nearest(word, known) or ends.get(nearest(word, ends) or "")
        raise NpukitError(f"There is no option {word}" + (f": did you mean {near}?" if near else "."))
    return matches


def as_text(schema: type[FrozenOptions], word: str = "", groups: Collection[str] = ()) -> str:
    """Return the table for people. With `groups`, it has only the options of these groups."""
    lines = []
    for option in matching(schema, word):
        if groups and option.key.partition(".")[0] not in groups:
            continue
        default = "required" if option.field.is_required() else f"default {option.default}"
        if when := option.when:
            default += f", only with {when.key}: {plain(when.values[0] if len(when.values) == 1 else when.values)}"
        lines.append(
            f"{option.key}\n    {translated(option.meaning)}\n    {translated(option.type)} ({translated(default)})"
        )
    return "\n".join(lines)


def as_data(schema: type[FrozenOptions], word: str = "") -> list[dict[str, Any]]:
    """The table for programs, and for the fields of a form.

    `type` is a sentence, `kind` a word: choice, boolean, integer, number, text, path, list or mapping. `minimum` and
    `maximum` are included, `above` and `below` are not.

    >>> as_data(Config, "tuning.rank")[0]["above"]
    0
    """
    return [_as_data(option) for option in matching(schema, word)]


def _as_data(option: Option) -> dict[str, Any]:
    group, _, name = option.key.rpartition(".")
    annotated: Any = Annotated[option.field.annotation, option.field]
    described = TypeAdapter(annotated).json_schema()
    alternatives = [kind for kind in described.get("anyOf", [described]) if kind.get("type") != "null"]
    return {
        "key": option.key,
        "group": group,
        "name": name,
        "type": option.type,
        "kind": _kind(alternatives),
        "choices": choices(option.field),
        "required": option.field.is_required(),
        "default": option.default,
        "meaning": option.meaning,
        "when": {"key": option.when.key, "values": option.when.values} if option.when else None,
        **{ours: _bound(alternatives, theirs) for ours, theirs in BOUNDS.items()},
    }


def _kind(alternatives: list[dict[str, Any]]) -> str:
    kinds = [KINDS.get(kind.get("format", kind.get("type", "")), "list") for kind in alternatives]
    if all("enum" in kind or "const" in kind for kind in alternatives):
        return "choice"
    if set(kinds) == {"integer", "number"}:
        return "number"
    return kinds[0] if len(set(kinds)) == 1 else "text"


def _bound(alternatives: list[dict[str, Any]], name: str) -> float | None:
    """Return the limit that all alternatives have in common, or None."""
    bounds = {kind.get(name) for kind in alternatives}
    return bounds.pop() if len(bounds) == 1 else None


def json_schema(schema: type[FrozenOptions], title: str) -> dict[str, Any]:
    """Return a JSON schema of the YAML file, for editors and other programs.

    >>> json_schema(Config, "npukit train")["properties"]["task"]["default"]
    'sft'
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema.model_json_schema(), "title": title}
