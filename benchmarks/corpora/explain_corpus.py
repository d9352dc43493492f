"""How often `npukit explain` begins with the right answer, over messages that people met (tests/explain/corpus.yaml).

python -m benchmarks explain_corpus prints the score, and every message whose first answer is another.
"""

from __future__ import annotations

import runpy
from collections import Counter

from benchmarks import ROOT

CORPUS = runpy.run_path(str(ROOT / "tests" / "explain" / "corpus.py"))


def main() -> None:
    answers = CORPUS["answers"]()
    wrong = [answer for answer in answers if answer.given != answer.wanted]
    print(f"{len(answers) - len(wrong)} of {len(answers)} messages get the right answer first.")
    for answer in wrong:
        print(f"  {answer.source}: {answer.given or 'nothing'} instead of {answer.wanted}")
        print(f"    {answer.log.splitlines()[0][:110]}")
    missed = Counter(answer.wanted for answer in wrong).most_common(5)
    print("Most often missed:", ", ".join(f"{code} ({count})" for code, count in missed) or "none")
