"""Resolve a data set's name: files, a folder, an entry of dataset_info.json, or a name on a hub."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest_file
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.archive import unpacked
from npukit.llm.data.files import READERS, RawRow, read_file
from npukit.llm.data.hub import archive_on_hub, hub_rows
from npukit.llm.data.negatives import with_negatives
from npukit.llm.data.origin import hub_root
from npukit.llm.data.presets import PRESETS
from npukit.llm.data.row import Layout, Rewriting
from npukit.llm.hub import Hub

INFO = "dataset_info.json"


@dataclass(frozen=True)
class Table:
    """One resolved data set: local files, or a name on a hub."""

    name: str
    layout: Layout
    files: tuple[Path, ...] = ()
    hub: Hub | None = None
    hub_name: str = ""
    subset: str | None = None
    split: str = "train"
    limit: int | None = None
    sampled: int | None = None  # rows to draw at random, as another tool would; see drawn.py
    keep: tuple[int, ...] | None = None  # indices of the rows to take, which may repeat; None: all
    weight: float | None = None
    archive: str = ""  # a zip file on the hub with the media of the rows
    negatives: int = 0  # negative texts per row, taken from other rows, for rows without any
    streaming: bool = False

    def records(self) -> Iterator[RawRow]:
        """Its rows in order. A hub's data set is downloaded first."""
        if self.keep is None:
            yield from self._records()
            return
        times = Counter(self.keep)
        for number, record in enumerate(self._records()):
            yield from itertools.repeat(record, times[number])

    def _records(self) -> Iterator[RawRow]:
        records = self._plain_records()
        if self.negatives:
            fitting = self.layout.columns.get("positive", "positive")
            records = with_negatives(records, self._plain_records, fitting, self.negatives)
        yield from records

    def _plain_records(self) -> Iterator[RawRow]:
        if self.hub:
            for number, row in enumerate(self._hub_rows(), 1):
                yield RawRow(self.name, number, row, unit="row")
        for file in self.files:
            yield from read_file(file)

    def media_folder(self) -> Path | None:
        """The media folder of its archive, unpacked on first use; None if it has no archive."""
        if not self.archive:
            return None
        return unpacked(archive_on_hub(self.hub, self.hub_name, self.archive) if self.hub else self._beside())

    def _beside(self) -> Path:
        """The archive next to its files."""
        folders = {self.files[0].parent, *self.files[0].parents}
        archive = next((folder / self.archive for folder in folders if (folder / self.archive).is_file()), None)
        if archive is None:
            raise NpukitError(f"{self.name}: there is no {self.archive} beside {self.files[0]}: copy it there.")
        return archive

    def fingerprint(self) -> str:
        """A value that changes when a hub's data set does."""
        return str(getattr(self._hub_rows(), "_fingerprint", ""))

    def _hub_rows(self) -> Iterable[dict[str, Any]]:
        assert self.hub is not None
        return hub_rows(self.hub, self.hub_name, self.subset, self.split, self.streaming)


def find_table(source: Source, data: DataOptions, hub: Hub | None = None) -> Table:
    """Resolve `source`; names that are not local are looked up on `hub`."""
    path, limit = _path_and_limit(source.path)
    hub = source.hub or hub or _default_hub()
    table = Table(
        source.path,
        _layout(source, data),
        split=source.split,
        subset=source.subset,
        weight=source.weight,
        archive="" if data.media_dir else source.archive or "",  # the user has unpacked it in media_dir
        negatives=source.negatives,
    )
    entries = _info_entries(data.folder)
    if path in entries:
        table = _from_info(table, path, entries[path], data.folder, hub)
    elif local := _local(path, data.folder):
        table = replace(table, files=_files(local, source.split))
    elif _is_hub_name(path, data.folder, entries):
        table = replace(table, hub=hub, hub_name=path)
    else:
        raise NpukitError(f"{path}: there is no such file, folder or data set{_where(path, data.folder, entries)}")
    limits = [number for number in (limit, data.max_rows, table.limit) if number]
    sampled = None if data.streaming else limit or table.limit
    return replace(table, limit=min(limits, default=None), sampled=sampled)


def _path_and_limit(text: str) -> tuple[str, int | None]:
    """Split `path#N`, which selects N rows.

    >>> _path_and_limit("alpaca.jsonl#500")
    ('alpaca.jsonl', 500)
    """
    path, _, rows = text.rpartition("#")
    if not path or not rows.isdigit():
        return text, None
    if not int(rows):
        raise NpukitError(f"{text}: #{rows} selects no rows; select at least 1.")
    return path, int(rows)


def _default_hub() -> Hub:
    return "modelscope" if os.environ.get("USE_MODELSCOPE_HUB", "").lower() in ("1", "true") else "huggingface"


def _layout(source: Source, data: DataOptions) -> Layout:
    if source.preset and source.preset not in PRESETS:
        raise NpukitError(f"{source.path}: there is no preset {source.preset}; known are {', '.join(PRESETS)}.")
    around = (source.question_suffix, source.answer_prefix, source.answer_until)
    return Layout(
        source.format,
        source.columns,
        rewriting=Rewriting(source.fill, *(text or "" for text in around)),
        question=source.question or "",
        min_label=source.min_label,
        preset=source.preset or "",
        keeps_empty=data.tokens != "npukit",
    )


def _local(path: str, folder: Path) -> Path | None:
    direct = Path(path).expanduser()
    return next((place for place in (direct, folder / path) if place.exists()), None)


def _is_hub_name(path: str, folder: Path, entries: dict[str, Any]) -> bool:
    """Whether it may be a hub name: owner/name, or a bare name unless a dataset_info.json defines them."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path) or Path(path).suffix.lower() in READERS or path.startswith("."):
        return False
    owner, _, name = path.partition("/")
    if not name:
        return not entries
    # A folder may have the owner's name by chance, but then without data, and without a similar name inside.
    if not Path(owner).is_dir():
        return True
    has_data = Path(owner) == folder or any(file.suffix.lower() in READERS for file in Path(owner).iterdir())
    return not has_data and not nearest_file(Path(path))


def _where(path: str, folder: Path, entries: dict[str, Any]) -> str:
    parent = Path(path).expanduser().parent
    nearby = {str(Path(path).parent / file.name): None for file in parent.iterdir()} if parent.is_dir() else {}
    inside = {file.name: None for file in folder.iterdir() if file.name != INFO} if folder.is_dir() else {}
    close = difflib.get_close_matches(path, [*entries, *inside, *nearby], n=1)
    return f"; did you mean {close[0]}?" if close else f" (looked in {Path.cwd()} and {folder})."


def _files(place: Path, split: str) -> tuple[Path, ...]:
    if place.is_file():
        return (place,)
    if (place / "dataset_dict.json").exists() and (place / split).is_dir():
        place = place / split
    if (place / "state.json").exists():
        return _saved(place)
    files = sorted(
        file for file in place.rglob("*") if file.suffix.lower() in READERS and file.is_file() and file.name != INFO
    )
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(place).parts)]
    if not files:
        raise NpukitError(f"{place} contains no {', '.join(READERS)} files.")
    of_split = re.compile(rf"(^|[-_./]){re.escape(split)}([-_./]|$)")
    return tuple([file for file in files if of_split.search(str(file.relative_to(place)))] or files)


def _saved(place: Path) -> tuple[Path, ...]:
    """The files of a data set that datasets' save_to_disk wrote."""
    try:
        state = json.loads((place / "state.json").read_text(encoding="utf-8"))
        return tuple(place / file["filename"] for file in state["_data_files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NpukitError(f"{place} is not a data set that save_to_disk wrote: its state.json is broken.") from error


def _info_entries(folder: Path) -> dict[str, Any]:
    info = folder / INFO
    if not info.is_file():
        return {}
    try:
        entries = json.loads(info.read_text("utf-8-sig"))
    except (ValueError, OSError) as error:
        raise NpukitError(f"{info} cannot be read: {error}.") from error
    if not isinstance(entries, dict):
        raise NpukitError(f"{info} should be an object of data sets, each with its file_name.")
    return entries


COMMON_COLUMNS = {name: name for name in ("tools", "chosen", "rejected", "kto_tag", "images", "videos", "audios")}
COLUMN_NAMES = {  # dataset_info.json's column names, and ours
    "alpaca": {
        "prompt": "instruction",
        "query": "input",
        "response": "output",
        "system": "system",
        "history": "history",
        **COMMON_COLUMNS,
    },
    "sharegpt": {"messages": "conversations", "system": "system", **COMMON_COLUMNS},
}
ROLE_TAGS = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "function_tag": "call",
    "observation_tag": "result",
}


def _from_info(table: Table, name: str, entry: Any, folder: Path, hub: Hub) -> Table:
    """The table that an entry of LLaMA-Factory's dataset_info.json describes."""
    where = f"{folder / INFO}, {name}"
    if not isinstance(entry, dict):
        raise NpukitError(f"{where}: it should be an object with file_name, hf_hub_url or ms_hub_url.")
    formatting = entry.get("formatting", "alpaca")
    family = "sharegpt" if formatting == "openai" else formatting
    if family not in COLUMN_NAMES:
        raise NpukitError(f"{where}: formatting {formatting!r} is not supported; alpaca, sharegpt and openai are.")
    columns = dict.fromkeys(("tools", "images", "videos", "audios"), "")  # not read unless they are named
    for theirs, column in (entry.get("columns") or {}).items():
        if theirs not in COLUMN_NAMES[family]:
            raise NpukitError(f"{where}: the column {theirs!r} is not supported for {formatting}.")
        columns[COLUMN_NAMES[family][theirs]] = column
    tags = entry.get("tags") or {}
    layout = Layout(
        "alpaca" if family == "alpaca" else "sharegpt",
        columns | table.layout.columns,
        {tags[tag]: role for tag, role in ROLE_TAGS.items() if tag in tags},
        tags.get("role_tag"),
        tags.get("content_tag"),
        table.layout.rewriting,
        keeps_empty=table.layout.keeps_empty,
    )
    split = entry.get("split", table.split)
    table = replace(table, layout=layout, limit=entry.get("num_samples"), split=split)
    preferred: tuple[tuple[str, Hub], ...] = (("hf_hub_url", "huggingface"), ("ms_hub_url", "modelscope"))
    on_hub = [(entry[key], place) for key, place in preferred if entry.get(key)]
    if on_hub:
        hub_name, place = next((known for known in on_hub if known[1] == hub), on_hub[0])
        return replace(table, hub=place, hub_name=hub_name, subset=entry.get("subset", table.subset))
    if not entry.get("file_name"):
        raise NpukitError(f"{where}: it has no file_name, hf_hub_url or ms_hub_url; nothing else is supported.")
    place_on_disk = _named_by_info(entry["file_name"], folder, where)
    if place_on_disk is None:
        raise NpukitError(f"{where}: its file {folder / entry['file_name']} does not exist.")
    return replace(table, files=_files(place_on_disk, split))


def _named_by_info(name: str, folder: Path, where: str) -> Path | None:
    """Check a path: a user's own dataset_info.json may name any file, one from a hub only files next to it."""
    root = hub_root(folder)
    if root is None:
        return _local(name, folder)
    place = folder / name
    if not place.resolve().is_relative_to(root):
        raise NpukitError(
            f"{where}: {name} lies outside {root}, which came from a hub. If you trust it, name that file itself as "
            "the data set."
        )
    return place if place.exists() else None
