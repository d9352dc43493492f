"""Evaluates a model on the user's files: perplexity of texts and answers, accuracy on multiple choice."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.engine import Engine
from npukit.inference.engine.request import Request, SamplingParams
from npukit.inference.loading import Loaded, load, start_engine
from npukit.inference.pictures import Fetch, from_disk
from npukit.inference.rows import find_tables, records
from npukit.llm.chat.messages import BadConversation
from npukit.llm.config.use import Use
from npukit.llm.data.questions import Question, question_of
from npukit.llm.data.row import BadRow
from npukit.report.progress import OnProgress

LETTERS = ("A", "B", "C", "D")
COLUMNS = ("question", *(letter.lower() for letter in LETTERS), "answer")
WINDOW = 2048  # tokens of a pass, if the model has no lower limit
ONE = SamplingParams(temperature=0, max_tokens=1)
ROWS = (".jsonl", ".json", ".parquet")
SUFFIXES = (".txt", ".csv", *ROWS)
IN_FOLDERS = tuple(suffix for suffix in SUFFIXES if suffix != ".json")  # which is often something else in a folder
SHOWN = 5  # problems
AT_ONCE = 64  # rows whose images are decoded together
CJK = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True)
class EvaluatedFile:
    """The result for one file: the perplexity of a text or of answers, or the accuracy of questions in per cent.

    `problems` are the first rows that were left out.
    """

    file: str
    tokens: int = 0
    perplexity: float | None = None
    questions: int = 0
    accuracy: float | None = None
    rows: int = 0
    failed: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluated:
    """The results for all files; `accuracy` is the mean over files, as C-Eval, MMLU and CMMLU report it."""

    model: str
    files: tuple[EvaluatedFile, ...]
    accuracy: float | None = None


@dataclass(frozen=True)
class Choice:
    """A question with four answers, one of them right."""

    question: str
    answers: tuple[str, ...]
    right: str

    @property
    def prompt(self) -> str:
        """The prompt, without a chat template, in the language of the question."""
        listed = "\n".join(f"{letter}. {answer}" for letter, answer in zip(LETTERS, self.answers, strict=True))
        ask = "答案：" if CJK.search(self.question) else "Answer: "
        return f"{self.question.strip()}\n{listed}\n{ask}"


def evaluate(use: Use, paths: Sequence[str], on_progress: OnProgress = lambda done, total: None) -> Evaluated:
    """Evaluate a model on texts (.txt) and rows (.jsonl, .json, .parquet), which give perplexities, and on multiple
    choice (.csv), or on folders of them.

    >>> evaluate(Use(model={"path": "qwen2"}), ["ceval/val"]).accuracy
    71.3
    """
    files = _find(paths)
    choices = {file: read_choices(file) for file in files if file.suffix == ".csv"}
    loaded = load(use)
    engine = start_engine(loaded, use.engine)
    results = []
    for number, file in enumerate(files):
        on_progress(number, len(files))
        if file in choices:
            results.append(_choose(engine, loaded.tokenizer, file, choices[file]))
        elif file.suffix in ROWS:
            results.append(_answers(engine, loaded, file, from_disk(file.parent, use.data.media_dir)))
        else:
            text = file.read_text(encoding="utf-8")
            mean, tokens = mean_loss(engine, loaded.tokenizer(text)["input_ids"], file)
            results.append(EvaluatedFile(str(file), tokens, math.exp(mean)))
    on_progress(len(files), len(files))
    scores = [result.accuracy for result in results if result.accuracy is not None]
    return Evaluated(use.model.path, tuple(results), sum(scores) / len(scores) if scores else None)


def _find(paths: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise NpukitError(f"There is no file or folder {path}.")
        files += sorted(file for file in path.rglob("*") if file.suffix in IN_FOLDERS) if path.is_dir() else [path]
    if other := next((file for file in files if file.suffix not in SUFFIXES), None):
        raise NpukitError(f"{other}: evaluation reads {', '.join(SUFFIXES)}.")
    if not files:
        raise NpukitError(f"{', '.join(paths)}: there is no file of the types {', '.join(SUFFIXES)}.")
    return files


def mean_loss(engine: Engine, ids: Sequence[int], name: object = "The text") -> tuple[float, int]:
    """The mean loss of the tokens, and their number. Each is predicted from at least half a window, or all before."""
    window = min(WINDOW, engine.max_model_len - 1)
    if len(ids) < 2:
        raise NpukitError(f"{name} is too short to be predicted.")
    requests, fresh = [], []
    for start, begin, end in _windows(len(ids), window):
        requests.append(Request(tuple(ids[begin:end]), ONE, prompt_logprobs=0))
        fresh.append(end - start)
    loss, count = 0.0, 0
    for answer, new in zip(engine.generate(requests), fresh, strict=True):
        if answer.error:
            raise NpukitError(f"{name}: {answer.error}")
        logprobs = [token.logprob for token in answer.prompt_logprobs[-new:] if token.logprob is not None]
        loss, count = loss - math.fsum(logprobs), count + len(logprobs)
    return loss / count, count


def _windows(length: int, window: int) -> Iterator[tuple[int, int, int]]:
    """(first new token, begin, end) of each window: every token is new once.

    >>> list(_windows(10, 4))
    [(0, 0, 4), (4, 2, 6), (6, 4, 8), (8, 6, 10)]
    """
    new, begin = 0, 0
    while new < length:
        end = min(begin + window, length)
        yield new, begin, end
        new, begin = end, max(begin + 1, end - window // 2)


def read_choices(file: Path) -> list[Choice]:
    """The questions of a file in the layout of C-Eval, CMMLU or MMLU, whose files have no header."""
    with file.open(encoding="utf-8-sig", newline="") as opened:
        rows = [row for row in csv.reader(opened) if row]
    if not rows:
        raise NpukitError(f"{file} is empty.")
    names = [name.strip().lower() for name in rows[0]]
    if set(COLUMNS) <= set(names):
        places, first = [names.index(name) for name in COLUMNS], 1
    elif len(rows[0]) == len(COLUMNS) and rows[0][-1].strip() in LETTERS:
        places, first = list(range(len(COLUMNS))), 0
    else:
        raise NpukitError(f"{file}: its columns must be question, A, B, C, D and answer.")
    choices = []
    for number, row in enumerate(rows[first:], first + 1):
        if len(row) <= max(places) or (right := row[places[-1]].strip().upper()) not in LETTERS:
            raise NpukitError(f"{file}, row {number}: the answer must be one of A, B, C and D.")
        question, *answers = (row[place] for place in places[:-1])
        choices.append(Choice(question, tuple(answers), right))
    return choices


def _choose(engine: Engine, tokenizer: Any, file: Path, choices: list[Choice]) -> EvaluatedFile:
    """The model's answer: the letter that is likeliest after the question."""
    requests, starts = [], []
    for choice in choices:
        prompt = tokenizer(choice.prompt.rstrip())["input_ids"]  # a space is often part of the next token
        for letter in LETTERS:
            ids = tokenizer(choice.prompt + letter)["input_ids"]
            same = next((at for at, (a, b) in enumerate(zip(prompt, ids, strict=False)) if a != b), len(prompt))
            requests.append(Request(tuple(ids), ONE, prompt_logprobs=0))
            starts.append(min(same, len(ids) - 1))
    scores = [
        math.fsum(token.logprob or 0.0 for token in answer.prompt_logprobs[start:])
        for answer, start in zip(engine.generate(requests), starts, strict=True)
    ]
    right = 0
    for number, choice in enumerate(choices):
        own = scores[number * len(LETTERS) : (number + 1) * len(LETTERS)]
        right += LETTERS[own.index(max(own))] == choice.right
    return EvaluatedFile(str(file), questions=len(choices), accuracy=100 * right / len(choices))


def _answers(engine: Engine, loaded: Loaded, file: Path, fetch: Fetch) -> EvaluatedFile:
    """The perplexity of the answers in rows, with or without images, or of whole texts."""
    loss, tokens, problems = 0.0, 0, []
    waiting: list[tuple[Request, int]] = []
    rows = list(records(find_tables([str(file)])))
    for number, table, record in rows:
        try:
            waiting.append(_wanted(loaded, question_of(record, table.layout), fetch))
        except (BadRow, BadConversation, NpukitError) as error:
            problems.append(f"{record.place} {error}")
        if len(waiting) == AT_ONCE or number == len(rows):
            for answer, (_, start) in zip(engine.generate([request for request, _ in waiting]), waiting, strict=True):
                if answer.error:
                    raise NpukitError(f"{file}: {answer.error}")
                logprobs = [token.logprob for token in answer.prompt_logprobs[start:] if token.logprob is not None]
                loss, tokens = loss - math.fsum(logprobs), tokens + len(logprobs)
            waiting = []
    if not tokens:
        raise NpukitError(f"{file} has no row with an answer to predict{f': {problems[0]}' if problems else ''}.")
    return EvaluatedFile(
        str(file),
        tokens,
        math.exp(loss / tokens),
        rows=len(rows),
        failed=len(problems),
        problems=tuple(problems[:SHOWN]),
    )


def _wanted(loaded: Loaded, question: Question, fetch: Fetch) -> tuple[Request, int]:
    """A question with its expected answer, and the index of the answer's first token."""
    if question.messages is None:
        return Request(tuple(loaded.tokenizer(question.text)["input_ids"]), ONE, prompt_logprobs=0), 1
    if not question.reference:
        raise BadRow("has no answer")
    _, asked = loaded.request(question.with_media, ONE, question.tools, fetch)
    answer = loaded.tokenizer(question.reference, add_special_tokens=False)["input_ids"]
    media = asked.media.followed_by(len(answer)) if asked.media else None
    return Request((*asked.prompt, *answer), ONE, prompt_logprobs=0, media=media), len(asked.prompt)
