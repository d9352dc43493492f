"""Progress and results of batches and evaluations, for people or as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from npukit.report.report import counted
from npukit.report.result import hand_back
from npukit.report.terminal import say

if TYPE_CHECKING:
    from npukit.inference.batch import Inferred
    from npukit.inference.evaluate import Evaluated


def show_inferred(done: Inferred, as_json: bool) -> None:
    """Show the result of a batch."""
    if as_json:
        hand_back("result", done)
        return
    for problem in done.problems:
        say(problem)
    answered = f"{done.rows - done.failed} of {counted(done.rows, 'row')} answered"
    before = f", {done.resumed} of them by an earlier run" if done.resumed else ""
    speed = f"{counted(done.generated_tokens, 'token')} in {done.seconds:.1f} s" if done.generated_tokens else ""
    print(f"{done.output}: {answered}{before}" + (f"; {speed}" if speed else ""))
    if done.metrics:
        figures = {name: value for name, value in dataclasses.asdict(done.metrics).items() if value is not None}
        print("  ".join(f"{name} {value:.2f}" for name, value in figures.items() if name != "pairs"))


def show_evaluated(done: Evaluated, as_json: bool) -> None:
    """Show the result of an evaluation."""
    if as_json:
        hand_back("result", done)
        return
    for file in done.files:
        for problem in file.problems:
            say(problem)
        if file.perplexity is not None:
            of_rows = (
                f" of the answers of {file.rows - file.failed} of {counted(file.rows, 'row')}" if file.rows else ""
            )
            print(f"{file.file}: perplexity {file.perplexity:.4f} over {counted(file.tokens, 'token')}{of_rows}")
        else:
            print(f"{file.file}: accuracy {file.accuracy:.2f}% of {counted(file.questions, 'question')}")
    if done.accuracy is not None and sum(file.accuracy is not None for file in done.files) > 1:
        print(f"mean accuracy {done.accuracy:.2f}%")
