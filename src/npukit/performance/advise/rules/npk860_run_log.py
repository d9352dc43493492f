"""A run of `npukit train` waits for data, by its log.jsonl.

The log contains no operators, but the share of the time in which the loop waited for batches, over the whole run.

example:
    npukit train sft.yaml training.workers=4
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.report.report import counted

rule = Rule(
    "NPK860",
    "run-waits-for-data",
    needs=("log",),
    why="Batches are prepared more slowly than they are consumed.",
    remedy="Raise training.workers (LLaMA-Factory and ms-swift: dataloader_num_workers), and tokenize the data before "
    "training (`npukit train` keeps the result).",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    shares = [record["data_wait"] for record in rank.trace.step_log if "data_wait" in record]
    if shares:
        ms = mean(shares) * rank.split.step
        evidence = f"{counted(len(rank.trace.step_log), 'line')} of {rank.trace.source.name}"
        yield rule.advice(rank, f"The run waits {ms:.1f} ms of each step for data", ms, evidence)
