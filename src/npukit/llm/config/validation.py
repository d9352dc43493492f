"""From what somebody wrote to a valid configuration, or to a sentence for each mistake."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from npukit.llm.config.explain import Option, choices, describe, options, parts, plain, section
from npukit.llm.config.given import Given, Keys, Mistake, nearest
from npukit.llm.config.options import Config, Source

MISSING = "(missing)"
REQUIRED = {"model": "path", "data": "train"}


def validate(given: Given) -> tuple[Config | None, list[Mistake]]:
    """The configuration as far as it can be understood, without what is wrong, and the mistakes."""
    mistakes = [*_take_for_what_was_meant(given), *_misplaced_booleans(given)]
    try:
        return Config.model_validate(given.values), mistakes
    except ValidationError as failure:
        errors = _innermost([(_keys(error, given.values), error) for error in failure.errors()])
    mistakes += [given.mistake(keys, _sentence(keys, error, given)) for keys, error in errors.items()]
    try:
        return Config.model_validate(_completed(_without(given.values, list(errors)))), mistakes
    except ValidationError:
        return None, mistakes


def _take_for_what_was_meant(given: Given) -> list[Mistake]:
    """Misspelt keys are mistakes; from there on they count as what was meant, so that it is not missing besides."""
    mistakes = _misspelt(given, (), given.values)
    for name, values in list(given.values.items()):
        if isinstance(values, dict) and name in Config.model_fields:
            mistakes += _misspelt(given, (name,), values)
    return mistakes


def _misspelt(given: Given, level: Keys, values: dict[str, Any]) -> list[Mistake]:
    mistakes = []
    known = _inside(level)
    for key in [key for key in values if key not in known]:
        meant = nearest(key, known, cutoff=0.75)
        if meant and meant not in values:
            mistakes.append(given.mistake((*level, key), unknown((*level, key), given)))
            given.rename((*level, key), (*level, meant))
    return mistakes


def _keys(error: ErrorDetails, values: Any) -> Keys:
    """Where the error is, without what pydantic adds about the members of a union."""
    keys: list[str | int] = []
    for item in error["loc"]:
        below = _at(values, (item,))
        is_missing = error["type"] == "missing" and item == error["loc"][-1] and isinstance(item, str)
        if below is None and not is_missing and not _holds(values, item):
            continue
        values = below
        keys.append(item)
    return tuple(keys)


def _innermost(errors: list[tuple[Keys, ErrorDetails]]) -> dict[Keys, ErrorDetails]:
    """One error a key; where something inside is wrong, what is around it is not."""
    result: dict[Keys, ErrorDetails] = {}
    for keys, error in errors:
        if not any(other != keys and other[: len(keys)] == keys for other, _ in errors):
            result.setdefault(keys, error)
    return result


def _sentence(keys: Keys, error: ErrorDetails, given: Given) -> str:
    name = given.name(keys)
    if error["type"] == "extra_forbidden":
        return unknown(keys, given)
    option = option_of(keys)
    if error["type"] == "missing" and isinstance(error["loc"][-1], str):
        missing = option_of((*keys,))
        what = f": {missing.meaning}" if missing else f": write {REQUIRED[str(keys[-1])]} below it"
        return f"{name} is missing{what}."
    if error["type"] == "value_error":
        return f"{name}: {error['msg'].removeprefix('Value error, ')}."
    value = _at(given.values, keys)
    if option is None or (option.key != ".".join(str(key) for key in keys if isinstance(key, str))):
        return f"{name} must be a group of keys ({', '.join(_inside(keys))}), not {shown(value)}."
    return wrong_value(name, option, value)


def wrong_value(name: str, option: Option, value: Any) -> str:
    """What may be written, what was, and what was probably meant."""
    words = choices(option.field.annotation)
    near = nearest(str(value), words) if words else None
    expected = describe(option.field)
    if expected == " | ".join(words):
        expected = "one of " + ", ".join(words)
    return f"{name} must be {expected}, not {shown(value)}" + (f": did you mean {near}?" if near else ".")


def unknown(keys: Keys, given: Given) -> str:
    """There is no such option: which one is near, or where it belongs."""
    from npukit.llm.config.dialects import translated_name

    word, level = str(keys[-1]), keys[:-1]
    name = given.name(keys)
    siblings = _inside(level)
    known = [key for key in options() if not key.startswith("data.train.")]
    here = [key for key in known if key.rsplit(".", 1)[-1] == word]
    if near := nearest(word, siblings, cutoff=0.75):
        return f"there is no option {name}: did you mean {near}?"
    if here:
        return f"there is no option {name}: it belongs under {here[0].rsplit('.', 1)[0]}, as {here[0]}."
    if theirs := translated_name(word):
        return f"there is no option {name}: {theirs}."
    ends = {key.rsplit(".", 1)[-1]: key for key in known}
    if near := nearest(word, siblings) or ends.get(nearest(word, ends) or ""):
        return f"there is no option {name}: did you mean {near}?"
    return f"there is no option {name}; here may be {', '.join(siblings)}."


def _inside(keys: Keys) -> list[str]:
    """The options that may stand below `keys`."""
    model: type[BaseModel] = Config
    for key in keys:
        if isinstance(key, int):
            continue
        field = model.model_fields.get(key)
        below = [each for each in parts(field.annotation) if section(each)] if field else []
        model = below[0] if below else Source
    return list(model.model_fields)


def option_of(keys: Keys) -> Option | None:
    """The option that `keys` leads to, or the one that it is inside of."""
    named = [str(key) for key in keys if isinstance(key, str)]
    if named[:2] == ["data", "validation"] and len(named) > 2:
        named[1] = "train"
    known = options()
    return next((known[each] for end in range(len(named), 0, -1) if (each := ".".join(named[:end])) in known), None)


def _misplaced_booleans(given: Given) -> Iterator[Mistake]:
    """Python takes true for 1; people who write it mean something else."""
    for keys, value in _leaves(given.values, ()):
        option = option_of(keys)
        if isinstance(value, bool) and option and bool not in parts(option.field.annotation):
            types = set(parts(option.field.annotation)) & {int, float}
            if types:
                yield given.mistake(keys, wrong_value(given.name(keys), option, value))


def _leaves(node: Any, above: Keys) -> Iterator[tuple[Keys, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*above, key))
    else:
        yield above, node


def _without(values: dict[str, Any], wrong: list[Keys]) -> dict[str, Any]:
    rest = copy.deepcopy(values)
    for keys in wrong:
        around = _at(rest, keys[:-1])
        if isinstance(around, dict):
            around.pop(keys[-1], None)
    return rest


def _holds(node: Any, key: str | int) -> bool:
    return isinstance(node, dict) and key in node


def _completed(values: dict[str, Any]) -> dict[str, Any]:
    """With something in the place of what is missing, so that the rest can be looked at."""
    for section_name, key in REQUIRED.items():
        values.setdefault(section_name, {}).setdefault(key, MISSING)
    return values


def _at(node: Any, keys: Keys) -> Any:
    for key in keys:
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list | tuple) and isinstance(key, int) and key < len(node):
            node = node[key]
        else:
            return None
    return node


def shown(value: Any) -> str:
    """A value for a sentence."""
    if isinstance(value, dict):
        return "a group of keys"
    if isinstance(value, list | tuple):
        return "a list" if len(value) > 4 else plain(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return "nothing" if value is None else plain(value)
