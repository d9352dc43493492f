"""Batch inference: answer every row of a data set exactly once, many at a time, and write the answers in order."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.engine.request import Output, Request, SamplingParams
from npukit.inference.loading import Loaded, load, start_engine
from npukit.inference.metrics import AnswerMetrics, measure
from npukit.inference.pictures import from_disk, named
from npukit.inference.rows import ANSWERS, Answers, find_tables, records
from npukit.inference.text import TextStream
from npukit.llm.chat.chat import Prompt
from npukit.llm.chat.messages import BadConversation
from npukit.llm.config.use import Use
from npukit.llm.data.questions import Question, question_of
from npukit.llm.data.row import BadRow
from npukit.llm.data.sources import Table
from npukit.llm.medium import COLUMNS
from npukit.report.progress import OnProgress

MAX_PIXEL_BYTES = 2**30  # of images that wait in the engine


@dataclass(frozen=True)
class Inferred:
    """The result of a batch."""

    output: Path
    rows: int
    failed: int
    resumed: int  # rows that an earlier run had answered
    generated_tokens: int
    seconds: float
    metrics: AnswerMetrics | None = None  # if rows have references
    problems: tuple[str, ...] = ()  # the first bad rows


@dataclass
class _Running:
    number: int
    question: Question
    prompt: Prompt
    text: TextStream
    pixels: int  # bytes
    pieces: list[str] = field(default_factory=list)
    tokens: int = 0


def infer(use: Use, on_progress: OnProgress = lambda done, total: None) -> Inferred | None:
    """Answer all rows, or this rank's share of them; None if other ranks have not finished yet.

    A run that was killed continues when it is started again with the same settings.
    """
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    limit = f"#{use.data.max_rows}" if use.data.max_rows else ""
    paths, output = [f"{source.path}{limit}" for source in use.data.input], use.data.output or ANSWERS
    tables = find_tables(paths, use.data.folder)
    total = sum(1 for _ in records(tables))
    if not total:
        raise NpukitError(f"{', '.join(paths)}: there are no rows.")
    answers = Answers(output, _settings(use, paths, tables), rank)
    resumed, start, tokens = len(answers.done), time.monotonic(), 0
    own_rows = [
        number for number in range(1, total + 1) if number % ranks == rank % ranks and number not in answers.done
    ]
    if own_rows:
        tokens = _Batch(use, answers, on_progress, total, resumed).run(tables, set(own_rows))
    if not answers.finish(total):
        return None
    seconds = time.monotonic() - start
    failed, problems, metrics = _look_at(output)
    return Inferred(output, total, failed, resumed, tokens, seconds, metrics, problems)


def _settings(use: Use, paths: list[str], tables: list[Table]) -> dict[str, Any]:
    """What must be the same for a run to continue: the rows and everything that an answer depends on."""
    files = [file for table in tables for file in table.files]
    return {
        "model": [use.model.path, *use.merged],
        "data": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files] or paths,
        **use.sampling.model_dump(mode="json"),
        "dtype": use.model.dtype,
        "template": [use.chat.template, use.chat.system],
        "max_model_len": use.engine.max_model_len,
    }


class _Batch:
    """Keeps the engine busy and writes each answer when it is complete."""

    def __init__(self, use: Use, answers: Answers, on_progress: OnProgress, total: int, done: int) -> None:
        self._use, self._answers, self._on_progress, self._total, self._done = use, answers, on_progress, total, done
        self._loaded: Loaded = load(use)
        self._engine = start_engine(self._loaded, use.engine)
        self._sampling: SamplingParams = replace(self._loaded.defaults, **use.sampling.of_an_answer())
        special = frozenset(self._loaded.tokenizer.all_special_ids)
        self._hidden = special - self._loaded.chat.marker_ids
        self._running: dict[int, _Running] = {}
        self._tokens = 0

    def run(self, tables: list[Table], numbers: set[int]) -> int:
        """Answer these rows; returns the number of generated tokens."""
        self._on_progress(self._done, self._total)
        beside = tuple(dict.fromkeys(file.parent for table in tables for file in table.files))
        self._fetch = from_disk(self._use.data.folder, self._use.data.media_dir, beside)
        waiting = self._waiting(tables, numbers)
        has_rows = True
        while has_rows or self._running:
            while has_rows and self._has_room:
                has_rows = self._start(waiting)
            for output in self._engine.step() if self._running else ():
                self._take(output)
        return self._tokens

    def _waiting(self, tables: list[Table], numbers: set[int]) -> Iterator[tuple[int, Question]]:
        for number, table, record in records(tables):
            if number not in numbers:
                continue
            try:
                yield number, question_of(record, table.layout)
            except BadRow as error:
                self._end(number, {"error": f"{record.place} {error}"})

    def _start(self, waiting: Iterator[tuple[int, Question]]) -> bool:
        """Add the next row to the engine; False if there is none."""
        row = next(waiting, None)
        if row is None:
            return False
        number, question = row
        sampling = replace(self._sampling, seed=self._sampling.seed + number)
        try:
            prompt, request = self._request(question, sampling)
            running = self._engine.add_request(request)
        except (BadConversation, NpukitError) as error:
            self._end(number, {**_question_fields(question), "error": str(error)})
            return True
        stream = TextStream(self._loaded.tokenizer, self._use.sampling.stop, hidden=self._hidden)
        pixels = request.media.nbytes if request.media is not None else 0
        self._running[running] = _Running(number, question, prompt, stream, pixels)
        return True

    def _request(self, question: Question, sampling: SamplingParams) -> tuple[Prompt, Request]:
        if question.messages is not None:
            return self._loaded.request(question.with_media, sampling, question.tools, self._fetch)
        prompt = Prompt(self._loaded.tokenizer(question.text)["input_ids"], question.text)
        return prompt, Request(tuple(prompt.ids), sampling)

    @property
    def _has_room(self) -> bool:
        """Whether the engine has room for another row: few are waiting, and their images are small."""
        pixels = sum(running.pixels for running in self._running.values())
        return len(self._running) < 2 * self._use.engine.max_num_seqs and pixels < MAX_PIXEL_BYTES

    def _take(self, output: Output) -> None:
        running = self._running.get(output.request_id)
        if running is None:  # tokens after a stop string
            return
        if output.token is not None:
            running.tokens += 1
            if output.finish_reason != "stop":
                running.pieces.append(running.text.add(output.token.id))
        finish = "stop" if running.text.stopped is not None else output.finish_reason
        if finish is None:
            return
        del self._running[output.request_id]
        self._engine.abort_request(output.request_id)
        self._tokens += running.tokens
        response = "".join(running.pieces) + running.text.end()
        row: dict[str, Any] = {**_question_fields(running.question), "response": response, "finish": finish}
        if running.prompt.has_tools:
            calls = self._loaded.chat.parse(running.prompt, response).calls
            row |= {"tool_calls": [asdict(call) for call in calls]} if calls else {}
        if output.error:
            row["error"] = str(output.error)
        self._end(running.number, row)

    def _end(self, number: int, row: dict[str, Any]) -> None:
        self._answers.add(number, row)
        self._done += 1
        self._on_progress(self._done, self._total)


def _question_fields(question: Question) -> dict[str, Any]:
    asked: dict[str, Any] = (
        {"messages": question.messages} if question.messages is not None else {"text": question.text}
    )
    asked |= {"tools": question.tools} if question.tools else {}
    for column, kind in COLUMNS.items():
        if sources := [named(medium.source) for medium in question.media if medium.kind == kind]:
            asked[column] = sources
    return asked if question.reference is None else {**asked, "label": question.reference}


def _look_at(output: Path) -> tuple[int, tuple[str, ...], AnswerMetrics | None]:
    failed, problems, pairs = 0, [], []
    with output.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if "error" in row:
                failed += 1
                problems += [f"row {row['row']}: {row['error']}"] if failed <= 5 else []
            elif "label" in row:
                pairs.append((row["response"], row["label"]))
    return failed, tuple(problems), measure(pairs) if pairs else None
