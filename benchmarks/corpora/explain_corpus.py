"""How often `npukit explain` begins with the right answer, over messages that people met (tests/explain/corpus.yaml).

python -m benchmarks explain_corpus prints the score, and every message whose first answer is another.
"""

from __future__ import annotations

import runpy
from collections import Counter

from benchmarks import ROOT

CORPUS = runpy.run_path(str(ROOT / "tests" / "explain" / "corpus.py"))


def main() -> None:
    found = CORPUS["answers"]()
    wrong = [each for each in found if each.given != each.wanted]
    print(f"{len(found) - len(wrong)} of {len(found)} messages get the right answer first.")
    for each in wrong:
        print(f"  {each.source}: {each.given or 'nothing'} instead of {each.wanted}")
        print(f"    {each.log.splitlines()[0][:110]}")
    missed = Counter(each.wanted for each in wrong).most_common(5)
    print("Most often missed:", ", ".join(f"{code} ({count})" for code, count in missed) or "none")
