"""The benchmark of many clients, for a second: no wrong, mixed or lost answer, and an end that loses none."""

from __future__ import annotations

import pytest
from benchmarks.robustness.serve_clients import run


@pytest.mark.usefixtures("copies")
def test_many_clients_at_once() -> None:
    tally = run(clients=6, seconds=1)
    assert tally.counts["answers"] and tally.counts["streams"] and not tally.wrong
