"""npukit export"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import JsonOption, OutputOption
from npukit.errors import NpukitError

if TYPE_CHECKING:
    from npukit.export.merge import Exported

UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class Dtype(str, Enum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


def export(
    model: Annotated[str, typer.Argument(help="Folder or hub name of a model or of a LoRA adapter.")],
    output: OutputOption = None,
    adapter: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter to merge. Repeatable; merged in order.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Type of the written weights; auto keeps it.")] = Dtype.auto,
    shard_size: Annotated[str, typer.Option(help="Largest size of a weights file.")] = "5GB",
    force: Annotated[bool, typer.Option("--force", help="Replace what is at --output.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write a model for other programs, with its adapters merged.

    Weights pass through memory one tensor at a time, and the folder (MODEL-merged unless --output says otherwise)
    appears only once it is complete.
    """
    from npukit.export.merge import merge
    from npukit.llm.models.folder import ADAPTER, base_of, find_model

    folder = find_model(model)
    adapters = [find_model(each) for each in adapter or []]
    if (folder / ADAPTER).is_file():
        adapters, folder = [folder, *adapters], find_model(base_of(folder))
    output = output or Path(f"{model.rstrip('/')}-merged")
    with _progress() as progress:
        done = merge(
            folder,
            adapters,
            output,
            dtype=dtype.value,
            shard_bytes=_bytes(shard_size),
            force=force,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    _show(done, json)


def _bytes(text: str) -> int:
    """
    >>> _bytes("5GB")
    5000000000
    """
    number = text.rstrip("BbGgIiKkMm")
    unit = text[len(number) :].lower() or "gb"
    try:
        size = int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        size = 0
    if size <= 0:
        raise NpukitError(f"--shard-size is {text!r}: give a size such as 5GB or 500MB.")
    return size


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("writing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _show(done: Exported, json: bool) -> None:
    if json:
        from json import dumps

        print(dumps(dataclasses.asdict(done), indent=2, default=str))
        return
    for note in done.notes:
        print(f"npukit: {note}", file=sys.stderr)
    merged = f", {done.changed} changed by {', '.join(done.adapters)}" if done.adapters else ""
    print(f"{done.output}: {done.tensors} tensors{merged}; {done.bytes / 1e9:.2f} GB in {done.dtype}")
