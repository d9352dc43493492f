"""Hold npukit's tokens, labels, rows and losses against LLaMA-Factory's and ms-swift's own code.

    python -m benchmarks peers tokens llama_factory|ms_swift [--tools] [--only TEMPLATE] [--record FILE]
    python -m benchmarks peers rows [--cases 200]
    python -m benchmarks peers heads

Run it where the tools can be imported too: their checkouts on PYTHONPATH beside src/, in an environment of its own;
`rows` and `heads` need ms-swift. Nothing is downloaded. tests/llm/chat/test_peers.py replays what --record wrote.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Literal


def tokens(
    tool: Literal["llama_factory", "ms_swift"],
    tools: Annotated[bool, "conversations with tools, calls and results"] = False,
    only: Annotated[str, "the template of this name"] = "",
    record: Path | None = None,
    show: Annotated[bool, "print the first difference of each template"] = False,
) -> None:
    from benchmarks.agreement.peer_code import tokens

    logging.disable(logging.WARNING)  # the tools'
    if record:
        record.write_text("".join(json.dumps(row) + "\n" for row in tokens.record(tool)))
    else:
        tokens.show(tool, tools, only, show)


def rows(cases: int = 200) -> None:
    from benchmarks.agreement.peer_code import rows

    logging.disable(logging.WARNING)  # the tools'
    rows.show(cases)


def heads() -> None:
    from benchmarks.agreement.peer_code import heads

    logging.disable(logging.WARNING)  # the tools'
    heads.show()


COMMANDS = {"tokens": tokens, "rows": rows, "heads": heads}
