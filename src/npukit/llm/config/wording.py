"""Sentences that name options, in the words of the tool that the user's file or flags are for.

A sentence names an option by its key (data.cutoff), and advises a value as a word for the command line (KEY=VALUE),
which means the same behind a file of any tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import OPTION
from npukit.llm.config.schema import options

WORD = re.compile(r"\b[a-z]+\.[a-z_]+=[\w-]+")


def worded(text: str, names: Mapping[str, str]) -> str:
    """`text` with each option under the name that the user's tool has for it; without `names` it is npukit itself.

    Their file would refuse an option of ours, so the sentence says where it goes.

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
