"""Tokenise large data on several cores, in processes forked from this one.

Forking avoids loading anything again. The processes use neither torch nor a device, which would not survive it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

from npukit.children import die_with
from npukit.errors import NpukitError
from npukit.llm.data.encode import Encoded, Encoder
from npukit.llm.data.files import RawRow
from npukit.llm.data.row import BadRow, Row

Batch = list[tuple[RawRow, Row]]
Results = list[list[Encoded] | BadRow]
ALONE = 4  # batches; fewer are not worth a process
MAX_PROCESSES = 16  # a single process reads and writes the data, and could not feed more


def encode_all(encoder: Encoder, batches: Iterator[Batch], workers: int | None) -> Iterator[tuple[Batch, Results]]:
    """Each batch with its tokens, in order, on this many cores; by default on all."""
    # The library's threads do not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    processes = min(len(os.sched_getaffinity(0)), MAX_PROCESSES) if workers is None else workers
    for batch in islice(batches, ALONE) if processes > 1 else batches:
        yield batch, encoder.encode([row for _, row in batch])
    first = next(batches, None)
    if first is not None:
        yield from _in_processes(encoder, first, batches, processes)


def _in_processes(
    encoder: Encoder, first: Batch, batches: Iterator[Batch], processes: int
) -> Iterator[tuple[Batch, Results]]:
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _begin, (encoder, os.getpid()))
    waiting: deque[tuple[Batch, Future[Results]]] = deque()
    try:
        waiting.append((first, pool.submit(_encode, [row for _, row in first])))
        for batch in batches:
            waiting.append((batch, pool.submit(_encode, [row for _, row in batch])))
            if len(waiting) > 2 * processes:
                done, result = waiting.popleft()
                yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
    except BrokenProcessPool as error:
        raise NpukitError(
            "A tokenising process was killed, probably because memory ran out: use fewer, for example "
            "data.preprocessing_workers=1."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Any = None


def _begin(encoder: Encoder, parent: int) -> None:
    global _encoder
    die_with(parent)
    _encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it, too, and ends these processes


def _encode(rows: list[Row]) -> Results:
    results: Results = _encoder.encode(rows)
    return results
