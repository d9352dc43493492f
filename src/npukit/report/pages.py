"""Translate Markdown pages to Chinese: the catalogue has their prose; code, names and addresses stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.report.language import chinese

FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
# A line of a paragraph that continues on the next line.
CONTINUED = re.compile(r"^(?![#|<]|- )(.*\S)\n(?=[^\s#|<])(?!- )", re.MULTILINE)
# Markup around prose: headings, list items with links, cells, breaks and labels.
MARKUP = re.compile(
    r"(^#+ (?:NPK\d+: )?|^- (?:\[[^\]]*\]\([^)]*\)(?::| [\w-]+:)? )?|<!--.*?-->|<br>| · "
    r"|(?<!\\)\|(?=(?:[^`\n]*`[^`\n]*`)*[^`\n]*$)"
    r"|^\*\*|(?<=[:\w)])\*\*(?= |$)|\n)",
    re.MULTILINE,
)
COMMENT = re.compile(r"((?:^|(?<=  ))# )(.*)", re.MULTILINE)  # in the commands of a block
SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z`])")


def chinese_page(page: str) -> str:
    """The page in Chinese. What the catalogue does not have stays English.

    >>> print(chinese_page("## Output\\n\\n- `--json`: see below"))
    ## 输出
    <BLANKLINE>
    - `--json`: see below
    """
    return "".join(text if is_markup else _chinese_prose(text) for text, is_markup in _parts(page))


def prose(page: str) -> Iterator[str]:
    """The texts of a page that are translated one by one.

    >>> list(prose("# NPK110: moved\\n\\n| name | why |\\n"))
    ['moved', 'name', 'why']
    """
    return (text.strip() for text, is_markup in _parts(page) if not is_markup and text.strip())


def _parts(page: str) -> Iterator[tuple[str, bool]]:
    """The page in pieces, each with whether it is code or markup."""
    for index, block in enumerate(FENCED.split(page)):
        if index % 2:
            in_commands = block.lstrip().startswith("```bash")
            for place, text in enumerate(COMMENT.split(block) if in_commands else [block]):
                yield text, place % 3 != 2
        else:
            for place, text in enumerate(MARKUP.split(CONTINUED.sub(r"\1 ", block))):
                yield text, bool(place % 2)


def _chinese_prose(text: str) -> str:
    """A text in Chinese with the white space around it: as a whole, or else sentence by sentence."""
    stripped = text.strip()
    plain = stripped.replace("&lt;", "<").replace("\\|", "|")  # without the escapes of a table cell
    known = chinese(plain) or "".join(chinese(part) or f" {part}" for part in SENTENCE.split(plain)).strip()
    if plain != stripped:
        known = known.replace("<", "&lt;").replace("|", "\\|")
    return text.replace(stripped, known, 1) if stripped else text
