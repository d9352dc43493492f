"""Which CPUs a process may use, and which of them are close to which card."""

from __future__ import annotations

import re

from npukit.machine.machine import Machine
from npukit.machine.npu_smi import Topology, parse_topology


def numbers_of(text: str) -> frozenset[int]:
    """Parse a list of CPU numbers.

    >>> sorted(numbers_of("0-2,8"))
    [0, 1, 2, 8]
    """
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers.update(range(int(first), min(int(last or first), int(first) + 4096) + 1))
    return frozenset(numbers)


def allowed(machine: Machine) -> frozenset[int]:
    """The CPUs that this process may run on; empty if unknown."""
    match = re.search(r"^Cpus_allowed_list:\s*([\d,-]+)", machine.read("/proc/self/status"), re.MULTILINE)
    return numbers_of(match[1]) if match else frozenset()


def near_cards(topology: Topology) -> dict[int, frozenset[int]]:
    """The CPUs close to each card, if npu-smi reports them."""
    rows = zip(topology.names, topology.cpus, strict=True)
    return {int(re.sub(r"\D", "", name)): numbers_of(cpus) for name, cpus in rows if cpus}


def share(cards: list[int], near: dict[int, frozenset[int]], usable: frozenset[int]) -> list[set[int]]:
    """The CPUs for the rank on each of `cards`, which share the CPUs close to them. Empty if a rank would get none.

    >>> share([0, 1], {0: frozenset(range(4)), 1: frozenset(range(4))}, frozenset(range(8)))
    [{0, 1}, {2, 3}]
    """
    shares = []
    for place, card in enumerate(cards):
        cpus = sorted(near.get(card, frozenset()) & usable)
        neighbours = [other for other in cards if near.get(other) == near.get(card)]
        size = len(cpus) // len(neighbours)
        turn = cards[:place].count(card) + neighbours.index(card)
        shares.append(set(cpus[turn * size : (turn + 1) * size]))
    return shares if all(shares) else []


def of_ranks(cards: list[int], machine: Machine | None = None) -> str:
    """The CPUs that each local rank is bound to, such as "0-7;8-15"; empty if this machine does not report them."""
    machine = machine or Machine()
    topology = parse_topology(machine.ask("npu-smi", "info", "-t", "topo", seconds=10).output)
    shares = share(cards, near_cards(topology), allowed(machine))
    return ";".join(",".join(map(str, sorted(cpus))) for cpus in shares)
