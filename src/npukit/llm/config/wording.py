"""Sentences that name options in the terms of the user's tool.

A sentence names an option by its key (data.cutoff). It suggests a value as a word for the command line (KEY=VALUE),
which can follow a file of any tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import OPTION
from npukit.llm.config.schema import options

WORD = re.compile(r"\b[a-z]+\.[a-z_]+=[\w-]+")


def worded(text: str, names: Mapping[str, str]) -> str:
    """Return `text` with the user's tool's names of options, or unchanged without `names`.

    The user's file would not accept npukit's options, so the sentence also says where to write them.

    >>> worded("Lower data.cutoff.", {"data.cutoff": "cutoff_len"})
    'Lower cutoff_len.'
    >>> worded("Set training.parallel=ddp.", {"data.cutoff": "cutoff_len"})
    "Set training.parallel=ddp. (An option of npukit's own: add training.parallel=ddp to the command.)"
    """
    if not names:
        return text
    known = options(Config)
    own = [name for name in OPTION.findall(text) if name in known and name not in names]
    text = OPTION.sub(lambda name: names.get(name[0], name[0]), text)
    words = [*WORD.findall(text), *(f"{name}=..." for name in own)]
    return f"{text} (An option of npukit's own: add {words[0]} to the command.)" if words else text
