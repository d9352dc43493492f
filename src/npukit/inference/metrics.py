"""How close answers are to their references: accuracy, ROUGE and BLEU, as other tools report them after training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

# A Chinese, Japanese or Korean character is a word of its own.
WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)


@dataclass(frozen=True)
class AnswerMetrics:
    """Means over all pairs, in per cent. What needs a library that is not installed is None."""

    pairs: int
    accuracy: float  # answers that are their reference, but for space around them
    rouge_1: float | None = None
    rouge_2: float | None = None
    rouge_l: float | None = None
    bleu_4: float | None = None


def measure(pairs: Sequence[tuple[str, str]]) -> AnswerMetrics:
    """Compare (answer, reference) pairs.

    >>> measure([("Paris", "Paris"), ("Rome", "Paris")]).accuracy
    50.0
    """
    exact = 100 * sum(answer.strip() == reference.strip() for answer, reference in pairs) / len(pairs)
    rouge = _rouge(pairs) if find_spec("rouge_score") else {}
    bleu = _bleu(pairs) if find_spec("sacrebleu") else None
    return AnswerMetrics(len(pairs), exact, rouge.get("rouge1"), rouge.get("rouge2"), rouge.get("rougeL"), bleu)


def words(text: str) -> list[str]:
    """
    >>> words("NPU 很快!")
    ['npu', '很', '快']
    """
    return WORD.findall(text.lower())


class _Words:
    """What rouge_score calls a tokenizer."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


def _rouge(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    from rouge_score.rouge_scorer import RougeScorer

    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names, tokenizer=_Words())
    sums = dict.fromkeys(names, 0.0)
    for answer, reference in pairs:
        for name, score in scorer.score(reference, answer).items():
            sums[name] += 100 * score.fmeasure / len(pairs)
    return sums


def _bleu(pairs: Sequence[tuple[str, str]]) -> float:
    """The mean over rows, smoothed: a short answer may have no four words."""
    from sacrebleu import sentence_bleu

    scores = (
        sentence_bleu(" ".join(words(answer)), [" ".join(words(reference))], tokenize="none").score
        for answer, reference in pairs
    )
    return float(sum(scores)) / len(pairs)
