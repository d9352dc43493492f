"""Hold npukit's tokens, labels, rows and losses against LLaMA-Factory's and ms-swift's own code.

    python -m benchmarks peers tokens llama_factory|ms_swift [--tools] [--only TEMPLATE] [--record FILE]
    python -m benchmarks peers rows [--cases 200]
    python -m benchmarks peers heads

Run it where the tools can be imported too: their checkouts on PYTHONPATH beside src/, in an environment of its own;
`rows` and `heads` need ms-swift. Nothing is downloaded. tests/llm/chat/test_peers.py replays what --record wrote.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path


def tokens(arguments: argparse.Namespace) -> None:
    from benchmarks.agreement.peer_code import tokens

    if arguments.record:
        arguments.record.write_text("".join(json.dumps(row) + "\n" for row in tokens.record(arguments.tool)))
    else:
        tokens.show(arguments.tool, arguments.tools, arguments.only, arguments.show)


def rows(arguments: argparse.Namespace) -> None:
    from benchmarks.agreement.peer_code import rows

    rows.show(arguments.cases)


def heads(arguments: argparse.Namespace) -> None:
    from benchmarks.agreement.peer_code import heads

    heads.show()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(required=True)
    for run in (tokens, rows, heads):
        way = ways.add_parser(run.__name__)
        way.set_defaults(run=run)
        if run is rows:
            way.add_argument("--cases", type=int, default=200)
        if run is tokens:
            way.add_argument("tool", choices=("llama_factory", "ms_swift"))
            way.add_argument("--tools", action="store_true", help="conversations with tools, calls and results")
            way.add_argument("--only", default="", help="the template of this name")
            way.add_argument("--record", type=Path)
            way.add_argument("--show", action="store_true", help="print the first difference of each template")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
