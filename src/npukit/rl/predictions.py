"""Evaluate by generating: the model being trained writes the last answer of each validation row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from npukit.inference.metrics import measure
from npukit.llm.config.options import ANSWER_METRICS, Config
from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.data.answers import ANSWER
from npukit.llm.data.collate import Collator
from npukit.llm.data.prompts import RolloutPrompt
from npukit.report.writing import disk_errors_named
from npukit.rl.sampler import Sampler
from npukit.train import Trainer

FOLDER = "predictions"  # in the folder of a run: a file of answers per evaluation


class Predictions:
    """Generates the most likely answer to each question and compares it with the expected one."""

    def __init__(self, config: Config, collate: Collator, tokenizer: Any, end_tokens: frozenset[int]) -> None:
        self._folder = config.training.output / FOLDER
        self._images, self._tokenizer, self._end_tokens = collate.images, tokenizer, end_tokens
        self._options = GrpoOptions(max_completion_length=config.evaluation.max_new_tokens, top_k=1)
        self._step, self._written = -1, set[int]()  # the rows whose answers were written for this step

    def begin(self, trainer: Trainer) -> None:
        """Called before training, with the model on its devices."""
        self._trainer = trainer
        parallel = trainer.parallel
        self._sampler = Sampler(
            parallel.module, parallel.dtype, self._tokenizer, self._end_tokens, self._options, images=self._images
        )

    def metrics(self, _model: Any, questions: Sequence[RolloutPrompt]) -> dict[str, float]:
        """The means over these questions, in per cent."""
        with self._trainer.parallel.whole_weights():
            samples = self._sampler.sample(questions, [0] * len(questions))
        answers = [sample.text for sample in samples]
        expected = [self._text(question.columns[ANSWER]) for question in questions]
        self._write([question.number for question in questions], answers, expected)
        if not questions:
            return {}
        measured = asdict(measure(list(zip(answers, expected, strict=True))))
        return {name: measured[name] for name in ANSWER_METRICS}

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _write(self, numbers: Sequence[int], answers: Sequence[str], expected: Sequence[str]) -> None:
        """Write the answers of all ranks without duplicates: a rank without a batch repeats another one."""
        parallel = self._trainer.parallel
        gathered = parallel.gather(list(zip(numbers, answers, expected, strict=True)))
        if not parallel.is_main:
            return
        is_first = self._step != self._trainer.step
        if is_first:
            self._step, self._written = self._trainer.step, set()
        file = self._folder / f"step-{self._step}.jsonl"
        with disk_errors_named(file):
            self._folder.mkdir(parents=True, exist_ok=True)
            with file.open("w" if is_first else "a", encoding="utf-8") as out:
                for number, answer, reference in (line for lines in gathered for line in lines):
                    if number not in self._written:
                        self._written.add(number)
                        line = {"row": number, "answer": answer, "reference": reference}
                        out.write(json.dumps(line, ensure_ascii=False) + "\n")
