"""Which CPUs are near which card."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

ROW = re.compile(r"^\s*(?:NPU|Phy-ID)\s*(\d+)\s.*\s(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\s*$")


def parse(text: str) -> set[int]:
    """The numbers in a list of CPUs.

    >>> parse("0-2,8")
    {0, 1, 2, 8}
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def near_cards(topology: str) -> dict[int, set[int]]:
    """The CPUs of each card, from what `npu-smi info -t topo` printed; empty when it does not tell."""
    rows = (ROW.match(line) for line in topology.splitlines())
    return {int(row[1]): parse(row[2]) for row in rows if row}


def share(cards: list[int], near: dict[int, set[int]], usable: set[int]) -> list[set[int]]:
    """The CPUs of the rank on each of `cards`: cards near the same CPUs divide them. Empty when a rank would get none.

    >>> share([0, 1], {0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}}, {0, 1, 2, 3})
    [{0, 1}, {2, 3}]
    """
    shares = []
    for place, card in enumerate(cards):
        cpus = sorted(near.get(card, set()) & usable)
        neighbours = [each for each in cards if near.get(each) == near.get(card)]
        size = len(cpus) // len(neighbours)
        turn = cards[:place].count(card) + neighbours.index(card)
        shares.append(set(cpus[turn * size : (turn + 1) * size]))
    return shares if all(shares) else []


def of_ranks(cards: list[int]) -> str:
    """What each local rank is bound to, as "0-7;8-15" would say it; empty when this machine does not tell."""
    if not shutil.which("npu-smi"):
        return ""
    try:
        told = subprocess.run(["npu-smi", "info", "-t", "topo"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    shares = share(cards, near_cards(told), os.sched_getaffinity(0))
    return ";".join(",".join(map(str, sorted(cpus))) for cpus in shares)
