"""Chat templates: the tokenizer's own, one of ours by name, or a file. All are Jinja as transformers reads it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm import families

FOLDER = Path(__file__).parent / "templates"
CONTROL = re.compile(r"<[|｜][^<>\s]+[|｜]>|<(?:start|end)_of_turn>")


def names() -> list[str]:
    """The templates that have a name."""
    return sorted(file.stem for file in FOLDER.glob("*.jinja"))


def other_names() -> dict[str, str]:
    """What LLaMA-Factory and ms-swift call some of them, as the model families have it."""
    return {name: ours for family in families.known().values() for name, ours in family.templates.items()}


@dataclass(frozen=True)
class Template:
    """A chat template: its name for people, and its Jinja text."""

    name: str
    text: str


def find_template(name: str | None, tokenizer: Any = None) -> Template:
    """The template of this name or file, or the tokenizer's own; `default` where it has none."""
    if name is None:
        own = getattr(tokenizer, "chat_template", None)
        if isinstance(own, dict):
            own = own.get("default")
        return Template("the tokenizer's", own) if own else find_template("default")
    file = FOLDER / f"{other_names().get(name, name)}.jinja"
    if "/" not in name and file.is_file():
        return Template(file.stem, file.read_text("utf-8"))
    if name.endswith((".jinja", ".jinja2", ".j2")):
        try:
            return Template(name, Path(name).expanduser().read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise NpukitError(f"The chat template {name} cannot be read: {error}.") from error
    # Another number is another model's template, not a slip.
    alike = [each for each in (*names(), *other_names()) if re.findall(r"\d", each) == re.findall(r"\d", name)]
    close = difflib.get_close_matches(name, alike, n=1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(names())}."
    raise NpukitError(
        f"There is no chat template {name!r}: {meant} Leave it out to use the tokenizer's own, or name a .jinja file."
    )


def missing_tokens(template: Template, tokenizer: Any) -> list[str]:
    """Control tokens that the template writes and the tokenizer does not have: it would spell them out."""
    known = {str(token) for token in tokenizer.added_tokens_decoder.values()} | set(tokenizer.get_vocab())
    return sorted(set(CONTROL.findall(template.text)) - known)
