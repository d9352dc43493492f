from __future__ import annotations

import pytest

from npukit.machine.cpus import near_cards, numbers_of, share
from npukit.machine.npu_smi import parse_topology

TOPOLOGY = """
           NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       HCCS       0-3
NPU1       HCCS       X          HCCS       0-3
NPU2       HCCS       HCCS       X          8-9,12

Legend:

  X    = Self
"""


def test_cpus_near_cards_are_read() -> None:
    assert near_cards(parse_topology(TOPOLOGY)) == {0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}, 2: {8, 9, 12}}
    assert near_cards(parse_topology(TOPOLOGY.replace("NPU", "Phy-ID"))).keys() == {0, 1, 2}
    assert near_cards(parse_topology("dcmi module initialize failed. ret is -8005")) == {}


def test_cards_near_the_same_cpus_divide_them() -> None:
    near = near_cards(parse_topology(TOPOLOGY))
    assert share([0, 1, 2], near, frozenset(range(16))) == [{0, 1}, {2, 3}, {8, 9, 12}]
    assert share([1], near, frozenset(range(16))) == [{0, 1, 2, 3}]


@pytest.mark.parametrize("usable", [{20, 21}, {0, 1}])
def test_nobody_is_bound_when_somebody_would_get_nothing(usable: set[int]) -> None:
    assert share([0, 1, 2], near_cards(parse_topology(TOPOLOGY)), frozenset(usable)) == []


def test_lists_of_cpus() -> None:
    assert numbers_of("0-2,8") == {0, 1, 2, 8}
