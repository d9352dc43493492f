"""The language for people: English, or Chinese if NPUKIT_LANG or the locale requests it.

The catalogue is report/zh/*.yaml: rows of an English text and its Chinese translation. An English text is a complete
message, or a template in which {0}, {1} stand for inserted values and [s] for a plural. A value is a name, a number,
code, or a message of the catalogue; after a colon it may also be what others say. Text that is not in the catalogue
stays English, and so does everything that programs read.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).with_name("zh")
VARIABLES = ("NPUKIT_LANG", "LC_ALL", "LC_MESSAGES", "LANG")  # the first one that is set counts
PLACE = re.compile(r"(\s*)((?:[^\s:]+:\d+: |command line: )?)(.*)", re.DOTALL)
GAP = re.compile(r"\{\d\}|\[s\]")
CODE = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\([^()]*\)")
PROSE = re.compile(
    r"(?<![\w./-])(a|an|are|be|for|if|is|it|its|that|the|them|this|was|what|which|with|your) ", re.IGNORECASE
)


def language() -> Literal["en", "zh"]:
    """The requested language.

    >>> language()
    'en'
    """
    locale = next((value for name in VARIABLES if (value := os.environ.get(name))), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def translated(text: str) -> str:
    """A message in the requested language; in English if the catalogue does not have it.

    >>> translated("Print the result as JSON.")
    'Print the result as JSON.'
    """
    if language() == "en" or not text:
        return text
    lines = text.split("\n")
    if len(lines) > 1 and (by_line := [_translated_line(line) for line in lines]) != lines:
        return catalogue().get(" ".join(text.split())) or "\n".join(by_line)
    return _translated_line(text)


def _translated_line(line: str) -> str:
    """A line of a message. A position at its beginning, such as `train.yaml:3: `, is not translated."""
    indent, place, text = PLACE.fullmatch(line).groups()  # type: ignore[union-attr]  # it takes any line
    return indent + (chinese(place) or place) + (chinese(text) or text)


@functools.lru_cache(maxsize=4096)
def chinese(text: str) -> str | None:
    """A message in Chinese; None if the catalogue does not have it.

    >>> chinese("Print the result as JSON.")
    '以 JSON 打印结果。'
    """
    plain = " ".join(text.split())
    if (chinese := catalogue().get(plain)) is not None:
        return chinese
    if plain.endswith(".") and (chinese := catalogue().get(plain[:-1])) is not None:  # a clause as a sentence
        return f"{chinese}\u3002"
    matches = ((pattern.fullmatch(plain), filled) for pattern, filled in _templates())
    return next((_filled(filled, match) for match, filled in matches if match and _takes(match)), None)


def _takes(match: re.Match[str]) -> bool:
    """Whether the placeholders of a template stand for what they may: prose of our own is translated as a whole."""
    return not any(
        PROSE.search(CODE.sub("", value)) and chinese(value) is None
        for name, value in match.groupdict().items()
        if not match.string[: match.start(name)].endswith((": ", ":"))
    )


def _filled(template: str, match: re.Match[str]) -> str:
    """The template with its placeholders filled. Values may be messages themselves; a single word is a name."""
    return re.sub(r"\{(\d)\}", lambda gap: _inner(match[f"_{gap[1]}"]), template)


def _inner(text: str) -> str:
    return (chinese(text) or text) if " " in text else text


@functools.cache
def catalogue() -> dict[str, str]:
    """All English texts with their Chinese translations."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = sorted(FOLDER.glob("*.yaml"))
    rows = [row for file in files for row in yaml.load(file.read_text(encoding="utf-8"), loader)]
    return {" ".join(row["en"].split()): row["zh"] for row in rows}


@functools.cache
def _templates() -> list[tuple[re.Pattern[str], str]]:
    """The rows with placeholders, most specific (with the most words) first."""
    rows = [(english, text) for english, text in catalogue().items() if GAP.search(english)]
    rows.sort(key=lambda row: -len(re.sub(r"\{\d\}", "", row[0])))
    return [(_pattern(english), text) for english, text in rows]


def _pattern(english: str) -> re.Pattern[str]:
    """What a template matches. A placeholder that occurs twice stands for the same value."""
    parts = re.split(r"\{(\d)\}", english)
    pattern = ""
    for number, part in enumerate(parts):
        if number % 2 == 0:
            pattern += re.escape(part).replace(re.escape("[s]"), "s?")
        else:
            pattern += f"(?P=_{part})" if part in parts[1:number:2] else f"(?P<_{part}>.+?)"
    return re.compile(pattern, re.DOTALL)
