"""Damaged profiles: `npukit advise` must answer with what is left or with one sentence, never a traceback or a hang.

    python -m benchmarks advise_damaged [--count 300] [--seed 0] [PROFILE...]

Without PROFILE it damages the small profiles of the tests; with some, copies of those.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.performance.profiles import database, kineto_trace, text_profile

from npukit.errors import NpukitError
from npukit.performance.advise.advise import Advised, advise
from npukit.performance.advise.text import as_text, comparison_text

LIMIT = 20  # seconds
STRANGE = ["", "N/A", "nan", "-1", "1e400", "99999999999999999999999999", "\x00", "\x1b[2J", "⌀", "[]", "0.0.0"]
STRANGE_JSON: list[Any] = [None, True, -1, 1e308, "", "N/A", [], {}, [[]], "9" * 30, 10**30]


def cut(data: bytes, random_: random.Random) -> bytes:
    return data[: random_.randrange(len(data) + 1)]


def flip(data: bytes, random_: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(max(1, len(changed) // 500)):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    return bytes(changed)


def drop(data: bytes, random_: random.Random) -> bytes:
    start = random_.randrange(len(data))
    return data[:start] + data[start + random_.randrange(2000) :]


def repeat(data: bytes, random_: random.Random) -> bytes:
    start = random_.randrange(len(data))
    return data[:start] + data[start : start + 3000] * 3 + data[start:]


def garbage(data: bytes, random_: random.Random) -> bytes:
    return random_.randbytes(random_.choice([0, 1, 100, 100_000]))


def deep(data: bytes, random_: random.Random) -> bytes:
    return b"[" * 200_000


def pack(data: bytes, random_: random.Random) -> bytes:
    return cut(gzip.compress(data), random_)


def strange(data: bytes, random_: random.Random) -> bytes:
    """Other values in a few places, in a file that stays well-formed."""
    try:
        whole = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except ValueError:
        cells = data.decode("utf-8", "replace").split(",")
        for _ in range(max(1, len(cells) // 30)):
            cells[random_.randrange(len(cells))] = random_.choice(STRANGE)
        return ",".join(cells).encode("utf-8", "replace")
    for _ in range(20):
        _replace_one(whole, random_)
    return json.dumps(whole).encode()


def _replace_one(value: Any, random_: random.Random) -> None:
    while isinstance(value, list | dict) and value:
        key = random_.choice(list(value)) if isinstance(value, dict) else random_.randrange(len(value))
        if random_.random() < 0.3 or not isinstance(value[key], list | dict):
            value[key] = copy.deepcopy(random_.choice(STRANGE_JSON))
            return
        value = value[key]


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    cut, cut, flip, drop, repeat, garbage, deep, pack, strange, strange, strange,
]  # fmt: skip


def samples(folder: Path) -> list[Path]:
    """One of each form."""
    for rank in (0, 1):
        text_profile(folder / "text", rank)
        database(folder / "db" / f"rank{rank}" / f"ascend_pytorch_profiler_{rank}.db", rank)
    kineto_trace(folder / "a.pt.trace.json")
    kineto_trace(folder / "b.pt.trace.json.gz", varying=True)
    records = "".join(json.dumps({"step": step, "seconds": step, "data_wait": 0.1}) + "\n" for step in range(9))
    (folder / "log.jsonl").write_text(records)
    return [folder / name for name in ("text", "db", "a.pt.trace.json", "b.pt.trace.json.gz", "log.jsonl")]


def damage(source: Path, target: Path, random_: random.Random) -> str:
    """A copy of a profile with one to three damaged files; says what was done."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    files = [target] if target.is_file() else sorted(file for file in target.rglob("*") if file.is_file())
    done = []
    for file in random_.sample(files, min(len(files), random_.choice([1, 1, 2, 3]))):
        how = random_.choice(DAMAGES)
        file.write_bytes(how(file.read_bytes() or b" ", random_))
        done.append(f"{how.__name__} {file.name}")
    return ", ".join(done)


def judged(path: Path) -> str:
    """What comes of it: judged, a sentence, a traceback or a hang."""
    signal.alarm(LIMIT)
    try:
        result = advise([path])
        text = as_text(result) if isinstance(result, Advised) else comparison_text(result)
        text.encode("utf-8")
        return "judged"
    except NpukitError as error:
        return "one sentence" if "\n" not in str(error) and len(str(error)) < 400 else "many sentences"
    except TimeoutError:
        return "hang"
    except BaseException:
        traceback.print_exc()
        return "traceback"
    finally:
        signal.alarm(0)


def main(profiles: tuple[Path, ...], count: int = 300, seed: int = 0) -> None:
    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    began, outcomes = time.perf_counter(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        sources = profiles or samples(Path(folder))
        for number in range(count):
            random_ = random.Random(seed + number)
            source = sources[number % len(sources)]
            target = Path(folder) / "damaged" / str(number) / source.name
            target.parent.mkdir(parents=True)
            what = damage(source, target, random_)
            outcome = judged(target)
            outcomes[outcome] += 1
            if outcome not in ("judged", "one sentence"):
                print(f"{outcome}: {source.name}, {what}, --seed {seed + number}")
            shutil.rmtree(target.parent)
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    print(f"{count} damaged profiles: {counts}; {time.perf_counter() - began:.0f} s")
    sys.exit(0 if outcomes.keys() <= {"judged", "one sentence"} else 1)
