"""The process that runs reward functions: `python -m npukit.rl.rewards.worker`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npukit.rl.rewards.answers import Scores
from npukit.rl.rewards.calling import check_columns, find_functions, score
from npukit.rl.workers import serve


def begin(asked: Any) -> tuple[list[str], Callable[[Any], Scores]]:
    """Load the functions. The worker then answers requests for their names, and for the rewards of answers."""
    options, grpo, columns = asked
    functions = find_functions(options, grpo)
    check_columns(functions, columns)
    return list(functions), lambda request: score(request[0], functions[request[0]], request[1])


if __name__ == "__main__":
    serve(begin)
