"""The device does nothing although the host has launched the next kernel already.

A stream then waits for something that the profile does not show: an event of another stream or process, a host function
in the stream, a collective that was not recorded, or another process that uses the same device. Gaps below 100 us are
the device's own latency and are not counted.

example:
    npukit devices                            # other processes on the device
    npukit profile --profiler-level 2 --steps 10-12 -- python train.py
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK807",
    "idle-with-work-queued",
    needs=("kernels", "launches"),
    devices=("npu", "cuda"),
    why="The profile shows that the device waits, but not what for.",
    remedy="Look at what the named kernel's stream waits for: wait_event and wait_stream calls, host callbacks, ranks "
    "that were not profiled, and other processes on the device (npu-smi, nvidia-smi).",
)
MIN_GAP = 100_000  # ns


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    starts = {kernel.start: kernel for kernel in rank.kernels}
    idle = [(gap, gap.end - max(gap.start, gap.handed_over)) for gap in rank.gaps if gap.handed_over is not None]
    long = [(gap, time) for gap, time in idle if time >= MIN_GAP]
    if not long:
        return
    ms = rank.per_step(sum(time for _, time in long))
    gap, longest = max(long, key=lambda pair: pair[1])
    following = starts.get(gap.end)
    name = f" before {following.type}" if following else ""
    evidence = f"{len(long) / rank.steps:.0f} gaps per step, the longest {longest / 1e6:.1f} ms{name}"
    what = f"The device is idle for {ms:.1f} ms of each step although work is queued"
    yield rule.advice(rank, what, ms, evidence, Confidence.medium)
