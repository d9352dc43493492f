"""Chat templates: the tokenizer's own, one of npukit's by name, or a file. All are Jinja as transformers uses it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm import families
from npukit.llm.chat.peers.data import table
from npukit.llm.chat.peers.jinja import of_meta, of_slots
from npukit.llm.chat.peers.llama_factory import Slots, slots_named, take_end_token
from npukit.llm.chat.peers.ms_swift import Meta, meta_named

FOLDER = Path(__file__).parent / "templates"
CONTROL = re.compile(r"<[|｜][^<>\s]+[|｜]>|<(?:start|end)_of_turn>")


def names() -> list[str]:
    """The names of npukit's templates."""
    return sorted(file.stem for file in FOLDER.glob("*.jinja"))


def other_names() -> dict[str, str]:
    """LLaMA-Factory's and ms-swift's names for some of them, according to the model families."""
    return {name: ours for family in families.known().values() for name, ours in family.templates.items()}


@dataclass(frozen=True)
class Template:
    """A chat template: its display name and its Jinja text."""

    name: str
    text: str
    slots: Slots | None = None  # LLaMA-Factory's, if its tokens are requested
    meta: Meta | None = None  # ms-swift's


def find_template(name: str | None, tokenizer: Any = None, tokens: str = "npukit") -> Template:
    """The template with this name or in this file, or the tokenizer's own, or else `default`.

    If another tool's tokens are requested, it is that tool's template. LLaMA-Factory's may also set the tokenizer's end
    token.

    >>> find_template("gemma2", tokens="llama_factory").slots.efficient_eos
    True
    """
    if name is not None and tokens == "llama_factory" and (slots := slots_named(name)):
        if tokenizer is not None:
            take_end_token(slots, tokenizer)
        return Template(name, _own_text(name) or of_slots(slots), slots=slots)
    if name is not None and tokens == "ms_swift" and (meta := meta_named(name)):
        return Template(name, of_meta(meta), meta=meta)
    if name is None:
        own = getattr(tokenizer, "chat_template", None)
        if isinstance(own, dict):
            own = own.get("default")
        return Template("the tokenizer's", own) if own else find_template("default")
    if "/" not in name and (text := _own_text(name)):
        return Template(other_names().get(name, name), text)
    if name.endswith((".jinja", ".jinja2", ".j2")):
        try:
            return Template(name, Path(name).expanduser().read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise NpukitError(f"The chat template {name} cannot be read: {error}.") from error
    if slots := slots_named(name):
        return Template(name, of_slots(slots))
    if meta := meta_named(name):
        return Template(name, of_meta(meta))
    raise _no_template(name)


def _no_template(name: str) -> NpukitError:
    # A different number means a different model's template, not a typing error.
    theirs = (*table("llama_factory")["templates"], *table("ms_swift")["templates"])
    known = (*names(), *other_names(), *theirs)
    alike = [other for other in known if re.findall(r"\d", other) == re.findall(r"\d", name)]
    close = difflib.get_close_matches(name, alike, n=1)
    others = f"there are {', '.join(names())}, and those of `npukit docs switching`."
    meant = f"did you mean {close[0]}?" if close else others
    return NpukitError(
        f"There is no chat template {name!r}: {meant} Leave it out to use the tokenizer's own, or name a .jinja file."
    )


def _own_text(name: str) -> str | None:
    """The Jinja text that npukit itself has for a name."""
    file = FOLDER / f"{other_names().get(name, name)}.jinja"
    return file.read_text("utf-8") if file.is_file() else None


def missing_tokens(template: Template, tokenizer: Any) -> list[str]:
    """Control tokens that the template writes and the tokenizer lacks, so that they would be split into pieces."""
    known = {str(token) for token in tokenizer.added_tokens_decoder.values()} | set(tokenizer.get_vocab())
    return sorted(set(CONTROL.findall(template.text)) - known)
