"""Compare a good dump with more than 200 broken and hostile ones: a sentence each, no traceback, and nothing is run.

    python -m benchmarks precision_damaged [--only NAME]

Each case is a copy of a real dump with one thing wrong, read by `npukit precision compare --reproduce` in a process of
its own. What can be read in part may be compared (exit code 0 or 1); what cannot is exit code 2 and one line. A case
fails with a traceback, another exit code, more than a line, after 20 seconds of CPU time, or if code in a file ran.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Damage = Callable[[Path], Any]
Case = tuple[str, Damage]  # its name, and what it does to the folder of a step's rank

RECORD = """
import sys, torch
from torch import nn
from npukit.precision import capture
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
with capture(sys.argv[1], level="ops", tensors=True):
    model(torch.ones(2, 4) * float(sys.argv[2])).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
"""


class Hostile:
    """Runs a command where somebody unpickles it."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def edited(change: Callable[[Any], Any], name: str = "dump.json") -> Damage:
    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        changed = change(content)
        (folder / name).write_text(json.dumps(content if changed is None else changed))

    return edit


def tensor_set(**values: Any) -> Damage:
    """Other values in the first output of every row."""

    def change(content: Any) -> None:
        for row in content["data"].values():
            for output in (row.get("output") or [])[:1]:
                if isinstance(output, dict):
                    output.update(values)

    return edited(change)


def rows_replaced(row: Any) -> Damage:
    return edited(lambda content: content["data"].update(dict.fromkeys(content["data"], row)))


def row_added(name: str) -> Damage:
    return edited(lambda content: content["data"].update({name: {"output": []}}))


def cut(name: str, share: float, foreign: bool) -> Damage:
    def do(folder: Path) -> None:
        data = (folder / name).read_bytes()
        if foreign:  # msprobe's rows have no line each, and cannot be read in part
            data = json.dumps({**json.loads(data), "npukit": None}, indent=1).encode()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return do


def flipped(seed: int) -> Damage:
    def do(folder: Path) -> None:
        chance = random.Random(seed)
        file = folder / chance.choice(["dump.json", "stack.json", "construct.json"])
        data = bytearray(file.read_bytes())
        for _ in range(chance.choice([1, 3, 30])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(data)

    return do


def encoded(encoding: str) -> Damage:
    def do(folder: Path) -> None:
        text = (
            (folder / "dump.json")
            .read_text()
            .replace("Module.0", "Module.größe数据".replace("数据", "" if encoding in ("latin-1", "cp037") else "数据"))
        )
        (folder / "dump.json").write_bytes(text.encode(encoding, errors="replace"))

    return do


def tensors_replaced(content: Callable[[], bytes]) -> Damage:
    def do(folder: Path) -> None:
        for file in (folder / "dump_tensor_data").iterdir():
            file.write_bytes(content())

    return do


def replaced_by(name: str, make: Callable[[Path], Any]) -> Damage:
    def do(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return do


def only_pkl(content: bytes) -> Damage:
    def do(folder: Path) -> None:
        (folder / "dump.json").unlink()
        (folder / "dump.pkl").write_bytes(content)

    return do


def moved(name: str) -> Damage:
    return lambda folder: folder.rename(folder.with_name(name))


def saved(value: Any, **options: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def cases(canary: Path) -> Iterator[Case]:
    for percent in range(2, 100, 4):
        yield f"cut at {percent}%", cut("dump.json", percent / 100, foreign=True)
    for percent in range(1, 100, 9):
        yield f"our own cut at {percent}%", cut("dump.json", percent / 100, foreign=False)
        yield f"stack cut at {percent}%", cut("stack.json", percent / 100, foreign=False)
    for seed in range(36):
        yield f"bytes flipped {seed}", flipped(seed)
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-7", "utf-8-sig", "latin-1", "gbk", "cp037", "shift_jis"):
        yield f"encoding {encoding}", encoded(encoding)
    yield from structures()
    yield from values()
    yield from hostile(canary)
    yield from ptdbg(canary)
    yield from folders()


def structures() -> Iterator[Case]:
    contents: list[bytes] = [
        b"",
        b" ",
        b"\0" * 4096,
        b"[]",
        b"7",
        b"null",
        b'"text"',
        b"{}",
        b"{]",
        b"[" * 200_000,
        b"{" * 200_000,
    ]
    contents += [
        b'{"data": %s}' % value for value in (b"[]", b"null", b"3", b'"x"', b"{}", b"9" * 6000, b"1e999", b"NaN")
    ]
    contents += [
        gzip.compress(b"{}"),
        b"PK\x03\x04" + b"\0" * 60,
        b"\x93NUMPY",
        b'{"data": {"Aten.add.0.forward": NaN}}',
    ]
    for number, content in enumerate(contents):
        yield f"content {number}", written("dump.json", content)
    for name in ("stack.json", "construct.json"):
        for number, content in enumerate(
            (b"[]", b"5", b'{"0": 5}', b'{"0": [[1], 2, 3]}', b'{"0": [[[]], [{}]]}', b"\xff\xfe", b"{" * 90_000)
        ):
            yield f"{name} {number}", written(name, content)
    odd: list[Any] = [None, [], 5, "x", {"output": 5}, {"output": {"type": 3}}, {"input_args": {"a": [[[[None]]]]}}]
    for number, row in enumerate(odd):
        yield f"row {number}", rows_replaced(row)
    for number, name in enumerate(
        (
            "",
            ".",
            "Module",
            "Module..forward.0",
            "Aten.add.99999999999999999999.forward",
            "Aten.\0.0.forward",
            "x" * 100_000,
            "Module." + "a." * 40_000 + "L.forward.0",
            "../../etc/passwd",
            "Aten.add.٣.forward",
        )
    ):
        yield f"name {number}", row_added(name)
    yield "mixed versions", edited(lambda content: content.update(npukit=[1], level=7, task={}, framework=None))
    yield "a newer version", edited(lambda content: content.update(npukit="99.0", data={"rows": content["data"]}))


def values() -> Iterator[Case]:
    odd: list[Any] = [None, [], {}, "x", -1, True, 1e308, 10**30, float("nan"), float("-inf"), "NaN"]
    for key in ("shape", "dtype", "Max", "Norm", "Nan", "Hash", "Sketch", "type"):
        for number, value in enumerate(odd if key in ("shape", "Norm", "Sketch") else odd[:5]):
            yield f"{key} {number}", tensor_set(**{key: value})
    for number, shape in enumerate(([-1, 2], [1.5], [2**63, 2**63], [[2]], [True], [10**18] * 40)):
        yield f"shape list {number}", tensor_set(shape=shape)
    for number, name in enumerate(
        ("../../../../etc/passwd", "/etc/passwd", "/dev/zero", "a\0b", "x" * 5000, "..", "dump.json", 5)
    ):
        yield f"data_name {number}", tensor_set(data_name=name)
    yield "dump_data_dir", edited(lambda content: content.update(dump_data_dir="/"))


def hostile(canary: Path) -> Iterator[Case]:
    for protocol in range(6):
        data = pickle.dumps(Hostile(canary), protocol=protocol)
        yield f"pickle as dump.json {protocol}", written("dump.json", data)
        yield f"pickle as tensors {protocol}", tensors_replaced(partial(bytes, data))
    yield "torch.save of an object", tensors_replaced(lambda: saved(Hostile(canary)))
    yield (
        "old torch.save of an object",
        tensors_replaced(lambda: saved(Hostile(canary), _use_new_zipfile_serialization=False)),
    )
    no_tensors: list[Any] = [{}, [], 5, "x", None]
    for number, value in enumerate(no_tensors):
        yield f"no tensor {number}", tensors_replaced(partial(saved, value))
    yield "a tensor of another shape", tensors_replaced(lambda: saved(__import__("torch").ones(3, 3, 3)))
    yield "a cut tensor", tensors_replaced(lambda: saved(__import__("torch").ones(9))[:300])
    yield "empty tensors", tensors_replaced(lambda: b"")
    yield "a pipe", replaced_by("dump.json", os.mkfifo)
    yield "a folder", replaced_by("dump.json", Path.mkdir)
    yield "a link to itself", replaced_by("dump.json", lambda path: path.symlink_to(path))
    yield "a link to a device", replaced_by("dump.json", lambda path: path.symlink_to("/dev/zero"))
    yield "a stack that is a device", replaced_by("stack.json", lambda path: path.symlink_to("/dev/zero"))
    yield "a construct that is a pipe", replaced_by("construct.json", os.mkfifo)


def ptdbg(canary: Path) -> Iterator[Case]:
    good = b'["Functional_relu_0_forward_output", 1, [], "torch.float32", [2, 2], [1.0, 0.0, 0.5]]\n'
    contents = [
        b"",
        b"\n\n",
        b"[]\n",
        b"5\n",
        b"{}\n",
        b"not json\n",
        good[:40],
        good + b"[",
        b"\x80\x04N.",
        b"[" * 90_000,
    ]
    contents += [good.replace(b"[2, 2]", shape) for shape in (b"[-1]", b'"x"', b"[1e9]", b"[[2]]", b"null")]
    contents += [good.replace(b"1.0", number) for number in (b"NaN", b'"x"', b"1e999", b"[]", b"9" * 6000)]
    contents += [pickle.dumps(Hostile(canary), protocol=protocol) for protocol in range(6)]
    for number, content in enumerate(contents):
        yield f"ptdbg {number}", only_pkl(content)


def folders() -> Iterator[Case]:
    for name in ("rank99999999999999999999", "rank-1", "rankx", "rank 0", "proc", "rank٣", "RANK0"):
        yield f"folder {name}", moved(name)
    yield "empty folder", lambda folder: shutil.rmtree(folder)
    yield "no dump", lambda folder: (folder / "dump.json").unlink()
    yield "other step", lambda folder: folder.parent.rename(folder.parent.with_name("step7"))


def outcome(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and what was said, from a child that has everything imported already."""
    log = folder / "said"
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(descriptor, 2)
        sys.argv = ["npukit", *arguments]
        try:
            from npukit.cli import main

            main()
            os._exit(0)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1 if end.code else 0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(99)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), log.read_text(errors="replace")


def main(only: str = "") -> None:
    root = Path(tempfile.mkdtemp(prefix="precision-broken-"))
    for name, scale in (("left", "1"), ("right", "2")):
        subprocess.run([sys.executable, "-c", RECORD, str(root / name), scale], check=True)
    import torch  # noqa: F401  before the children

    import npukit.precision.comparing  # noqa: F401

    canary, codes, bad = root / "canary", Counter[int](), 0
    for name, damage in cases(canary):
        if only not in name:
            continue
        broken = root / "broken"
        shutil.copytree(root / "right", broken)
        damage(broken / "step0" / "rank0")
        arguments = ["precision", "compare", str(root / "left"), str(broken), "--reproduce", str(root / "reproduce")]
        code, text = outcome(arguments, root)
        lines = text.strip().splitlines()
        wrong = code not in (0, 1, 2) or "Traceback" in text or (code == 2 and len(lines) != 1) or canary.exists()
        codes[code] += 1
        bad += wrong
        if wrong or only:
            last = lines[-1][:160] if lines else ""
            print(f"{'WRONG' if wrong else 'right'} {name}: exit code {code}, {len(lines)} lines: {last}", flush=True)
        canary.unlink(missing_ok=True)
        for path in (broken, root / "reproduce"):
            shutil.rmtree(path, ignore_errors=True)
    total = sum(codes.values())
    compared = codes[0] + codes[1]
    print(f"{total} broken dumps: {codes[2]} refused in a sentence, {compared} compared as far as they go, {bad} wrong")
    shutil.rmtree(root)
