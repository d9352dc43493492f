"""Rows of a data set as the model will see them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from npukit.llm.config.options import DataOptions
    from npukit.llm.data.encode import Encoded, Encoder
    from npukit.llm.data.files import RawRow
    from npukit.llm.data.row import Layout
    from npukit.llm.images.images import Images
    from npukit.llm.tasks.task import Task


LOOKED_AT = 2000  # rows that are tokenised for the histogram
SHOWN = 10  # rows of a page
BAD = 100
BARS = 24
MAX_PICTURES = 8  # of a row
MAX_TOKENS = 1500  # of a row that is shown


def look(wanted: dict[str, str], cutoff: int, page: int) -> dict[str, Any]:
    """Some rows of a data set as tokens, of which some count; the lengths of rows; rows that cannot be used."""
    from npukit.llm.chat.templates import find_template
    from npukit.llm.config.options import DataOptions, Source
    from npukit.llm.data.check import find_layout
    from npukit.llm.data.encode import Encoder
    from npukit.llm.data.sources import find_table
    from npukit.llm.tasks import known

    task = known().get(wanted["task"] or "sft")
    if task is None:
        raise NpukitError(f"There is no task {wanted['task']}.")
    options = DataOptions(
        train=(Source(path=wanted["data"]),),
        template=wanted["template"] or None,
        cutoff=cutoff,
        folder=wanted["folder"],
        tokens=wanted["tokens"] or "npukit",
    )
    tokenizer = _tokenizer(wanted["model"])
    table = find_table(options.train[0], options)
    if table.hub:
        raise NpukitError(f"{wanted['data']} is not on this machine: the studio shows files in its folders.")
    template = find_template(options.template, tokenizer, options.tokens)
    records = list(islice(table.records(), LOOKED_AT))
    layout = find_layout(records, table, task)
    images = _images(wanted["model"], options)
    encoded, bad = _encode(records, layout, task, Encoder(options, task, tokenizer, template, images))
    rows = [row for _, row in encoded]
    return {
        "rows": [
            {"place": record.place, "pictures": _pictures(record, wanted["folder"]), **_tokens(row, tokenizer, images)}
            for record, row in encoded[page * SHOWN : (page + 1) * SHOWN]
        ],
        "bad": [
            {"place": record.place, "why": why, "pictures": _pictures(record, wanted["folder"])}
            for record, why in bad[:BAD]
        ],
        "looked_at": len(records),
        "usable": len(rows),
        "pages": -(-len(rows) // SHOWN),
        "bad_count": len(bad),
        "cut": sum(row.was_cut for row in rows),
        "histogram": _histogram([len(row.tokens) for row in rows]),
        "template": template.name if wanted["template"] else "",
        "counted": sum(int((row.tokens >= 0).sum()) for row in rows),
        "total": sum(len(row.tokens) for row in rows),
    }


def _encode(
    records: list[RawRow], layout: Layout, task: Task, encoder: Encoder
) -> tuple[list[tuple[RawRow, Encoded]], list[tuple[RawRow, str]]]:
    """The rows of records as tokens, and why others cannot be used."""
    from npukit.llm.data.check import row_of
    from npukit.llm.data.encode import are_bytes
    from npukit.llm.data.row import BadRow, LeftOut, Row

    usable: list[RawRow] = []
    rows: list[Row] = []
    bad: list[tuple[RawRow, str]] = []
    for record in records:
        try:
            rows.append(row_of(record, layout, task))
            usable.append(record)
        except LeftOut:
            continue
        except BadRow as error:
            bad.append((record, str(error)))
    encoded = []
    for record, result in zip(usable, encoder.encode(rows), strict=True):
        if isinstance(result, BadRow):
            bad.append((record, str(result)))
        else:
            encoded += [(record, replace(row, tokens=row.tokens[~are_bytes(row.tokens)])) for row in result]
    return encoded, bad


def _pictures(record: RawRow, folder: str) -> list[str]:
    """The picture files that a row names, relative to its file or to the data folder."""
    value = record.value if isinstance(record.value, dict) else {}
    listed = value.get("images") or value.get("image") or []
    images = listed if isinstance(listed, list) else [listed]
    paths = [image.get("path") if isinstance(image, dict) else image for image in images]
    places = (Path(record.file).parent, Path(folder), Path())
    existing = (
        next((place / path for place in places if (place / path).is_file()), None)
        for path in paths[:MAX_PICTURES]
        if isinstance(path, str) and path
    )
    return [str(path) for path in existing if path is not None]


@lru_cache(maxsize=4)
def _tokenizer(model: str) -> Any:
    from npukit.llm.config.options import ModelOptions
    from npukit.llm.models.folder import find_parts
    from npukit.llm.models.loading import load_tokenizer

    folder, adapters = find_parts(model)
    place = next((adapter for adapter in adapters if (adapter / "tokenizer_config.json").is_file()), folder)
    return load_tokenizer(ModelOptions(path=model), str(place))


def _images(model: str, options: DataOptions) -> Images | None:
    """How the model is given images; None where it sees none."""
    from npukit.llm.config.options import ModelOptions
    from npukit.llm.models.folder import find_parts
    from npukit.llm.models.loading import load_config, load_images

    folder, model_options = str(find_parts(model)[0]), ModelOptions(path=model)
    return load_images(model_options, folder, load_config(model_options, folder), options)


def _tokens(encoded: Encoded, tokenizer: Any, images: Images | None = None) -> dict[str, Any]:
    """Pieces of text and whether they count; tokens that are parts of one character are shown as one piece.

    So are those of an image, under the name of its file.
    """
    import numpy as np

    from npukit.llm.data.encode import END, MORE, SEPARATOR

    left = list(encoded.images)
    rest = 0  # tokens of an image that has been shown
    pieces: list[dict[str, Any]] = []
    waiting: list[int] = []
    for value in encoded.tokens[:MAX_TOKENS].tolist():
        if value == SEPARATOR:
            pieces.append({"text": "", "counts": False, "id": None})
            continue
        counts = value >= 0
        token = (value % END) % MORE if counts else ~value
        if images and encoded.images and images.is_image(np.array(token)):
            if not rest:
                image = left.pop(0)
                rest = image.size.tokens
                name = f"[{Path(image.files[0]).name}: {rest} tokens]"
                pieces.append({"text": name, "counts": counts, "id": token, "tokens": rest})
            rest -= 1
            continue
        waiting.append(token)
        decoded = tokenizer.decode(waiting)
        if "\ufffd" in decoded and len(waiting) < 4:
            continue
        pieces.append({"text": decoded, "counts": counts, "id": waiting[0], "tokens": len(waiting)})
        waiting = []
    more = max(0, len(encoded.tokens) - MAX_TOKENS)
    length, counted = len(encoded.tokens), int((encoded.tokens >= 0).sum())
    return {"pieces": pieces, "more": more, "length": length, "counted": counted, "cut": encoded.was_cut}


def _histogram(lengths: list[int]) -> list[dict[str, int]]:
    if not lengths:
        return []
    width = max(1, -(-(max(lengths) + 1) // BARS))
    counts = [0] * (max(lengths) // width + 1)
    for length in lengths:
        counts[length // width] += 1
    return [{"from": at * width, "to": (at + 1) * width - 1, "rows": count} for at, count in enumerate(counts)]
