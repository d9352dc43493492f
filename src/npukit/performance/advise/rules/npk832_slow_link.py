"""One link between two cards is slower than others of the same kind.

It compares links of the same transport (HCCS, SIO, RDMA, PCIe) that carried more than a few megabytes.

example:
    hccn_tool -i 0 -link -g
    hccn_tool -i 0 -netdetect -g
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Link

rule = Rule(
    "NPK832",
    "slow-link",
    needs=("sizes",),
    several=True,
    devices=("npu",),
    why="A ring or a mesh is as fast as its slowest link.",
    remedy="Check that link with `npukit doctor`, hccn_tool and npu-smi; between servers check the switch, the cable "
    "and the network settings (HCCL_RDMA_TC, HCCL_RDMA_SL).",
)
SLOWER, MIN_BYTES = 0.7, 4e6


@rule.on_job
def check(ranks: Sequence[Rank]) -> Iterator[Advice]:
    by_transport: dict[str, list[tuple[Rank, Link]]] = defaultdict(list)
    for rank in ranks:
        for link in rank.trace.links:
            if link.transport != "LOCAL" and link.bytes >= MIN_BYTES and link.seconds > 0:
                by_transport[link.transport].append((rank, link))
    for transport, links in by_transport.items():
        usual = median(link.bytes / link.seconds for _, link in links)
        slow = [(rank, link) for rank, link in links if link.bytes / link.seconds < SLOWER * usual]
        if not slow or len(links) < 3:
            continue
        rank, link = min(slow, key=lambda pair: pair[1].bytes / pair[1].seconds)
        ms = rank.per_step((link.seconds - link.bytes / usual) * 1e9)
        rate = link.bytes / link.seconds / 1e9
        what = f"The {transport} link from rank {link.source} to {link.target} reaches {rate:.1f} GB/s"
        evidence = f"the median of {len(links)} {transport} links is {usual / 1e9:.1f} GB/s"
        yield rule.advice(rank, what, ms, evidence, Confidence.medium, subject=transport)
