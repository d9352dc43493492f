"""The process that runs reward functions: `python -m npukit.rl.rewards.worker`.

It is sent options, then requests, each as a pickle, and answers each in turn. What functions print goes to standard
error.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any, BinaryIO

from npukit.children import die_with
from npukit.errors import NpukitError
from npukit.rl.rewards.calling import check_columns, find_functions, score


def main() -> None:
    """Serve until nobody asks any more."""
    die_with(int(sys.argv[1]))
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path.insert(0, str(Path.cwd()))
    try:
        options, grpo, columns = pickle.load(requests)
        functions = find_functions(options, grpo)
        check_columns(functions, columns)
    except NpukitError as error:
        return _reply(replies, error)
    _reply(replies, list(functions))
    while True:
        try:
            name, answers = pickle.load(requests)
        except EOFError:
            return
        _reply(replies, score(name, functions[name], answers))


def _reply(replies: BinaryIO, value: Any) -> None:
    pickle.dump(value, replies)
    replies.flush()


if __name__ == "__main__":
    main()
